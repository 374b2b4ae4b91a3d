"""Says what to install so that a package is there alone, with newest or with lowest dependencies.

Needs `packaging`, so the commands run it inside `.venv`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement

from tools.workspace import Member, normalise


def requirements_of(
    member: Member,
    extras: Iterable[str],
    members: Mapping[str, Member],
    files: Mapping[str, Path],
) -> list[str]:
    """Return the requirement lines for one package and everything it needs.

    Packages of this repository are given by their files, so none is taken from an index. All their
    other requirements stand beside them: uv takes the lowest version only of what is asked for by
    name, and the versions that a package says it works with are its direct ones.

    Args:
        member: The package.
        extras: Its extras to install.
        members: All packages by name.
        files: The wheel or sdist of each package.
    """
    lines: list[str] = []
    wanted: dict[str, frozenset[str]] = {}
    waiting = [(member.name, frozenset(extras))]
    while waiting:
        name, chosen = waiting.pop()
        before = wanted.get(name)
        if before is not None and chosen <= before:
            continue
        wanted[name] = chosen | (before or frozenset())
        current = members[name]
        texts = [*current.dependencies, *(t for e in wanted[name] for t in current.extras[e])]
        for text in texts:
            requirement = Requirement(text)
            target = normalise(requirement.name)
            if target in members:
                waiting.append((target, frozenset(requirement.extras)))
            else:
                lines.append(text)
    own = [
        f"{name}{f'[{chr(44).join(sorted(chosen))}]' if chosen else ''} @ {files[name].as_uri()}"
        for name, chosen in sorted(wanted.items())
    ]
    return [*own, *sorted(set(lines))]
