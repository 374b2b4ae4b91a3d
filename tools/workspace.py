"""Reads the workspace: its members, their versions and how they depend on each other.

Standard library only: `tools sync` needs it before anything is installed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tools.errors import ToolError

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Member:
    """One package of the workspace.

    Attributes:
        name: Distribution name, normalised.
        folder: Folder relative to the repository root, with forward slashes.
        version: Static version of its pyproject.
        requires_python: The Python versions it supports, as its pyproject says it.
        dependencies: Run-time requirements.
        extras: Further requirements of each extra.
        dev_requirements: Requirements of its dependency groups.
    """

    name: str
    folder: str
    version: str
    requires_python: str
    dependencies: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]
    dev_requirements: tuple[str, ...]

    @property
    def import_name(self) -> str:
        """Name of the package that Python imports."""
        return self.name.replace("-", "_")

    @property
    def requirements(self) -> tuple[str, ...]:
        """Run-time requirements, those of extras included."""
        return (*self.dependencies, *(text for extra in self.extras.values() for text in extra))

    def depends_on(self) -> frozenset[str]:
        """Normalised names of everything it requires at run time, extras included."""
        return frozenset(requirement_name(text) for text in self.requirements)


def requirement_name(requirement: str) -> str:
    """Return the normalised distribution name a requirement string starts with."""
    match = _NAME.match(requirement.strip())
    if match is None:
        raise ToolError(f"requirement {requirement!r} does not start with a package name")
    return normalise(match.group())


def normalise(name: str) -> str:
    """Return a distribution name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ToolError: the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ToolError(f"{path} does not exist") from error
    except tomllib.TOMLDecodeError as error:
        raise ToolError(f"{path} is not valid TOML: {error}") from error


def table(data: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the table at `keys`, or an empty one where a key is missing."""
    found: Mapping[str, Any] = data
    for key in keys:
        found = cast("Mapping[str, Any]", found.get(key, {}))
    return dict(found)


def read_members(root: Path) -> tuple[Member, ...]:
    """Return the members of the workspace, each after all members it depends on.

    Members that do not depend on each other are in order of their folders. Dependency groups do not
    count: a package's tests may use a package that depends on it.

    Raises:
        ToolError: a pyproject is missing or incomplete, a name is used twice, or members depend on
            each other in a circle.
    """
    patterns = table(read_toml(root / "pyproject.toml"), "tool", "uv", "workspace").get("members")
    if not patterns:
        raise ToolError(f"{root / 'pyproject.toml'} has no [tool.uv.workspace] members")
    folders = sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_dir()})
    found: dict[str, Member] = {}
    for folder in folders:
        member = _read_member(root, folder)
        if member.name in found:
            first = found[member.name].folder
            raise ToolError(f"{first} and {member.folder} are both named {member.name}")
        found[member.name] = member
    return _in_dependency_order(found)


def _read_member(root: Path, folder: Path) -> Member:
    path = folder / "pyproject.toml"
    data = read_toml(path)
    project = table(data, "project")
    for key in ("name", "version", "requires-python"):
        if not isinstance(project.get(key), str):
            raise ToolError(f"{path} has no static project.{key}; set it")
    extras = table(project, "optional-dependencies")
    groups = table(data, "dependency-groups")
    # A group may hold {include-group = ...} tables beside requirement strings.
    dev = [entry for group in groups.values() for entry in group if isinstance(entry, str)]
    return Member(
        name=normalise(project["name"]),
        folder=folder.relative_to(root).as_posix(),
        version=project["version"],
        requires_python=project["requires-python"],
        dependencies=tuple(project.get("dependencies", [])),
        extras={name: tuple(needs) for name, needs in extras.items()},
        dev_requirements=tuple(dev),
    )


def _in_dependency_order(members: Mapping[str, Member]) -> tuple[Member, ...]:
    ordered: list[Member] = []
    waiting = sorted(members.values(), key=lambda member: member.folder)
    while waiting:
        placed = {member.name for member in ordered}
        ready = next(
            (m for m in waiting if m.depends_on() & (members.keys() - {m.name}) <= placed), None
        )
        if ready is None:
            names = ", ".join(member.name for member in waiting)
            raise ToolError(f"these packages depend on each other in a circle: {names}")
        ordered.append(ready)
        waiting.remove(ready)
    return tuple(ordered)
