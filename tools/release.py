"""Releases one version group: checks that it is ready, tags it, builds its packages.

A tag is `GROUP-vVERSION`, such as `agents-v0.1.0`. Needs `packaging`, so the commands run it inside
`.venv`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.changelog import CHANGELOG, read_fragments, release_notes
from tools.console import capture, run
from tools.errors import ToolError
from tools.versions import group_versions, read_groups, version_problems
from tools.workspace import Member, read_members

_TAG = re.compile(r"(?P<group>[a-z0-9-]+)-v(?P<version>[0-9][0-9A-Za-z.]*)")


@dataclass(frozen=True)
class Release:
    """One group as it stands in the work tree, ready to be released.

    Attributes:
        group: Name of the group.
        version: Its version.
        members: Its packages, in dependency order.
        notes: What the changelog says about it.
    """

    group: str
    version: str
    members: Sequence[Member]
    notes: str

    @property
    def tag(self) -> str:
        """The tag that marks it."""
        return f"{self.group}-v{self.version}"


def ready_release(root: Path, group: str) -> Release:
    """Return the release of a group.

    Raises:
        ToolError: the group is not ready: its versions do not agree, the changelog lacks it, or
            there are changes that no release holds.
    """
    groups = read_groups(root)
    members = read_members(root)
    if group not in groups:
        raise ToolError(f"{group} is no version group; there are {', '.join(groups)}")
    problems = version_problems(root)
    version = group_versions(groups, members)[group]
    fragments, _ = read_fragments(root, groups)
    left = [str(fragment.path) for fragment in fragments if fragment.group == group]
    if left:
        problems.append(
            f"{', '.join(left)}: not in {CHANGELOG} yet; "
            f"`python3 -m tools versions bump {group} PART --write` moves them there"
        )
    if problems:
        raise ToolError("\n".join(problems))
    notes = release_notes((root / CHANGELOG).read_text(encoding="utf-8"), group, version)
    own = [member for member in members if member.name in groups[group]]
    return Release(group, version, own, notes)


def tagged_release(root: Path, tag: str) -> Release:
    """Return the release that a tag names.

    Raises:
        ToolError: the tag is not of the right form, names another version than the packages have,
            or the group is not ready.
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        raise ToolError(f"{tag!r} is no release tag; it is GROUP-vVERSION, such as agents-v0.1.0")
    release = ready_release(root, match["group"])
    if release.tag != tag:
        raise ToolError(f"{tag} is not the version of the packages, which is {release.version}")
    return release


def write_tag(root: Path, release: Release) -> None:
    """Tag the current commit, with the notes as the tag's message.

    Raises:
        ToolError: the work tree has changes, or the tag exists already.
    """
    if capture(["git", "status", "--porcelain"], cwd=root):
        raise ToolError("the work tree has changes; commit or remove them first")
    message = f"{release.group} {release.version}\n\n{release.notes}"
    # Verbatim, or git would take the headings of the notes for comments.
    options = ["--annotate", "--cleanup=verbatim", "--message", message]
    run(["git", "tag", *options, release.tag], cwd=root, hint="A tag is never moved.")
