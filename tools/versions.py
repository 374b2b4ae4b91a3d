"""Checks that packages which are released together carry one version and pin each other exactly.

The compatibility tables and the changelog have to say the same.
Groups are declared in the root pyproject under `[tool.dex-agents.versions.groups]`. It needs
`packaging`, so the commands run it inside `.venv`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from tools.changelog import changelog_problems
from tools.compatibility import compatibility_problems
from tools.errors import ToolError
from tools.workspace import Member, normalise, read_members, read_toml, table

Groups = Mapping[str, tuple[str, ...]]


def version_problems(root: Path) -> list[str]:
    """Return every broken rule about versions as a sentence that says what to do.

    Raises:
        ToolError: the workspace cannot be read or no group is declared.
    """
    groups, members = read_groups(root), read_members(root)
    return [
        *check_versions(groups, members),
        *compatibility_problems(root, members),
        *changelog_problems(root, group_versions(groups, members)),
    ]


def read_groups(root: Path) -> Groups:
    """Return the version groups of the root pyproject: group name to distribution names."""
    data = read_toml(root / "pyproject.toml")
    groups = table(data, "tool", "dex-agents", "versions", "groups")
    if not groups:
        raise ToolError("pyproject.toml has no [tool.dex-agents.versions.groups]")
    return {
        name: tuple(normalise(member) for member in cast("list[Any]", members))
        for name, members in groups.items()
    }


def group_versions(groups: Groups, members: Sequence[Member]) -> dict[str, str]:
    """Return the version of each group that has members: that of the first one named."""
    versions = {member.name: member.version for member in members}
    return {
        group: next(versions[name] for name in names if name in versions)
        for group, names in groups.items()
        if any(name in versions for name in names)
    }


def check_versions(groups: Groups, members: Sequence[Member]) -> list[str]:
    """Return the problems of these members under these groups; none is an empty list."""
    problems = _membership_problems(groups, members)
    by_name = {member.name: member for member in members}
    group_of = {name: group for group, names in groups.items() for name in names}
    for group, names in groups.items():
        versions = {n: by_name[n].version for n in names if n in by_name}
        if len(set(versions.values())) > 1:
            listed = ", ".join(f"{name} {version}" for name, version in versions.items())
            problems.append(f"group {group} has several versions ({listed}); give all the same one")
    for member in members:
        problems += _own_version_problems(member)
        for text in member.requirements:
            problems += _requirement_problems(member, text, by_name, group_of)
    return problems


def _membership_problems(groups: Groups, members: Sequence[Member]) -> list[str]:
    where = "[tool.dex-agents.versions.groups] of the root pyproject"
    known = {member.name for member in members}
    problems: list[str] = []
    for member in members:
        found = [group for group, names in groups.items() if member.name in names]
        if not found:
            problems.append(f"{member.name} is in no version group; add it to {where}")
        elif len(found) > 1:
            both = " and ".join(found)
            problems.append(f"{member.name} is in the version groups {both}; keep it in one")
    for group, names in groups.items():
        problems += [
            f"version group {group} names {name}, which is no workspace member; change {where}"
            for name in names
            if name not in known
        ]
    return problems


def _own_version_problems(member: Member) -> list[str]:
    try:
        Version(member.version)
    except InvalidVersion:
        return [f"{member.folder}/pyproject.toml: {member.version!r} is not a valid version"]
    return []


def _requirement_problems(
    member: Member, text: str, by_name: Mapping[str, Member], group_of: Mapping[str, str]
) -> list[str]:
    where = f"{member.folder}/pyproject.toml"
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        return [f"{where}: {text!r} is not a valid requirement: {error}"]
    target = by_name.get(normalise(requirement.name))
    if target is None or target is member:
        return []
    same_group = group_of.get(member.name) == group_of.get(target.name)
    if same_group and str(requirement.specifier) != f"=={target.version}":
        return [
            f"{where}: {text!r} must pin {target.name}=={target.version} exactly, "
            "because both are released together"
        ]
    if not requirement.specifier.contains(target.version, prereleases=True):
        return [
            f"{where}: {text!r} shuts out {target.name} {target.version} of this very repository; "
            "widen the range"
        ]
    return []
