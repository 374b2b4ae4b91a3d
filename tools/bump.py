"""Gives a version group a new version: works out every file that changes, then writes them.

Needs `packaging`, so the commands run it inside `.venv`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from tools.changelog import (
    CHANGELOG,
    read_fragments,
    read_sections,
    section_text,
    with_section,
)
from tools.compatibility import updated_readmes
from tools.console import capture
from tools.errors import ToolError
from tools.versions import Groups, group_versions, read_groups
from tools.workspace import Member, normalise, read_members

PARTS = ("major", "minor", "patch")


@dataclass(frozen=True)
class Change:
    """What writing a new version does to the work tree.

    Attributes:
        texts: New text of each file that changes, by its path relative to the root.
        removed: Files that go away: the fragments that the changelog now holds.
    """

    texts: Mapping[Path, str]
    removed: Sequence[Path]


def next_version(current: str, part: str) -> str:
    """Return the version after `current`; a pre-release becomes its release first.

    Raises:
        ToolError: `current` is not a valid version.
    """
    version = _version(current)
    major, minor, patch = (*version.release, 0, 0)[:3]
    if version.is_prerelease:
        return f"{major}.{minor}.{patch}"
    numbers = {
        "major": (major + 1, 0, 0),
        "minor": (major, minor + 1, 0),
        "patch": (major, minor, patch + 1),
    }
    return ".".join(str(number) for number in numbers[part])


def current_version(root: Path, group: str) -> str:
    """Return the version of a group.

    Raises:
        ToolError: there is no such group, or it has no members.
    """
    versions = group_versions(read_groups(root), read_members(root))
    if group not in versions:
        raise ToolError(f"{group} is no version group; there are {', '.join(versions)}")
    return versions[group]


def plan(root: Path, group: str, version: str, date: str) -> Change:
    """Work out what gives a group this version: versions, pins, tables, lock and changelog.

    Giving it the version it already has is how the first release of a version is written.

    Raises:
        ToolError: the version is invalid, older than the current one or already released, or no
            fragment says what it changes.
    """
    new, current = _version(version), _version(current_version(root, group))
    if new < current:
        raise ToolError(f"{group} is at {current}; {new} is older")
    changelog = (root / CHANGELOG).read_text(encoding="utf-8")
    for section in read_sections(changelog):
        if section.group == group and _version(section.version) >= new:
            raise ToolError(
                f"{CHANGELOG} already holds {group} {section.version}; take a newer one"
            )
    groups = read_groups(root)
    fragments, problems = read_fragments(root, groups)
    if problems:
        raise ToolError("\n".join(problems))
    released = [fragment for fragment in fragments if fragment.group == group]
    if not released:
        raise ToolError(f"no fragment in changes/ says what {group} {new} changes; add one")

    texts: dict[Path, str] = {}
    members = [
        _update_member(root, member, groups, group, str(new), texts)
        for member in read_members(root)
    ]
    texts.update(updated_readmes(root, members))
    lock = root / "uv.lock"
    if lock.exists():
        text = lock.read_text(encoding="utf-8")
        texts[Path("uv.lock")] = _with_locked_versions(text, groups[group], str(new))
    texts[CHANGELOG] = with_section(changelog, section_text(group, str(new), date, released))
    changed = {
        path: text
        for path, text in texts.items()
        if (root / path).read_text(encoding="utf-8") != text
    }
    return Change(changed, [fragment.path for fragment in released])


def diff_of(root: Path, change: Change) -> str:
    """Return the change as a unified diff."""
    parts: list[str] = []
    new_texts = {**change.texts, **dict.fromkeys(change.removed, "")}
    for path, text in sorted(new_texts.items()):
        old = (root / path).read_text(encoding="utf-8")
        after = path.as_posix() if path in change.texts else "gone"
        parts += difflib.unified_diff(
            old.splitlines(keepends=True),
            text.splitlines(keepends=True),
            path.as_posix(),
            after,
            n=1,
        )
    return "".join(parts)


def apply(root: Path, change: Change) -> None:
    """Write the change.

    Raises:
        ToolError: the work tree holds other changes, which would get mixed up with these.
    """
    dirty = capture(["git", "status", "--porcelain"], cwd=root).splitlines()
    if dirty:
        listed = "\n".join(dirty[:10])
        raise ToolError(f"the work tree has changes; commit or remove them first:\n{listed}")
    for path, text in change.texts.items():
        (root / path).write_text(text, encoding="utf-8")
    for path in change.removed:
        (root / path).unlink()


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise ToolError(f"{text!r} is not a valid version; write it as 1.2.3") from error


def _update_member(
    root: Path, member: Member, groups: Groups, group: str, new: str, texts: dict[Path, str]
) -> Member:
    """Return the member as it will be, and put the new text of its pyproject into `texts`."""
    in_group = member.name in groups[group]
    path = Path(member.folder) / "pyproject.toml"
    text = (root / path).read_text(encoding="utf-8")
    if in_group:
        pattern = re.compile(r'^version = "[^"]*"$', re.MULTILINE)
        text, count = pattern.subn(f'version = "{new}"', text, count=1)
        if count != 1:
            raise ToolError(f'{path}: write the version on a line of its own as `version = "X"`')
    wanted = {
        old: _repinned(old, groups[group], new, exact=in_group) for old in member.requirements
    }
    for old, after in wanted.items():
        if after != old and f'"{old}"' not in text:
            raise ToolError(f"{path}: write {old!r} in double quotes, so that it can be found")
        text = text.replace(f'"{old}"', f'"{after}"')
    texts[path] = text
    return replace(
        member,
        version=new if in_group else member.version,
        dependencies=tuple(wanted[old] for old in member.dependencies),
        extras={name: tuple(wanted[old] for old in needs) for name, needs in member.extras.items()},
    )


def _repinned(text: str, names: Sequence[str], new: str, *, exact: bool) -> str:
    requirement = Requirement(text)
    if normalise(requirement.name) not in names:
        return text
    if exact:
        specifier = f"=={new}"
    elif requirement.specifier.contains(new, prereleases=True):
        return text
    else:
        specifier = _compatible_range(Version(new))
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}{extras}{specifier}{marker}"


def _compatible_range(version: Version) -> str:
    """Return the range up to the next version that may break: before 1.0 that is a minor one."""
    lowest = str(version) if version.is_prerelease or version.micro else _short(version)
    highest = f"{version.major + 1}" if version.major else f"0.{version.minor + 1}"
    return f">={lowest},<{highest}"


def _short(version: Version) -> str:
    return f"{version.major}.{version.minor}"


def _with_locked_versions(lock: str, names: Sequence[str], new: str) -> str:
    """Return the lock with the new version of these members; it holds nothing else of them."""
    for name in names:
        pattern = re.compile(rf'(\[\[package\]\]\nname = "{re.escape(name)}"\nversion = )"[^"]*"')
        lock, count = pattern.subn(rf'\g<1>"{new}"', lock)
        if count != 1:
            raise ToolError(f"uv.lock has no entry for {name}; run `python3 -m tools lock` first")
    return lock
