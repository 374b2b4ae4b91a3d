"""The commands `tools release ...`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tools.commands import Commands, in_environment
from tools.console import say
from tools.errors import ToolError


def add_to(commands: Commands) -> None:
    """Add the commands of this area."""
    release = commands.group("release", "check, tag and build the release of a version group")

    text = "check that a group can be released as it stands; print what its notes say"
    added = release.add("check", in_environment(_check), text)
    added.add_argument("group")

    text = "tag the current commit as the release of a group; shows the tag without --write"
    added = release.add("tag", in_environment(_tag), text)
    added.add_argument("group")
    added.add_argument("--write", action="store_true")

    text = "build the packages of a tagged release into a folder and check what they hold"
    added = release.add("build", in_environment(_build), text)
    added.add_argument("--tag", help="$GITHUB_REF_NAME when left out")
    added.add_argument("--dist", type=Path, default=Path("dist"), help="an empty folder")


def _check(root: Path, parsed: argparse.Namespace) -> int:
    from tools.release import ready_release

    release = ready_release(root, parsed.group)
    say(f"{release.tag} can be released")
    print(release.notes, end="")
    return 0


def _tag(root: Path, parsed: argparse.Namespace) -> int:
    from tools.release import ready_release, write_tag

    release = ready_release(root, parsed.group)
    if not parsed.write:
        say(f"would tag this commit {release.tag}; add --write")
        return 0
    write_tag(root, release)
    say(f"`git push origin {release.tag}` starts the release")
    return 0


def _build(root: Path, parsed: argparse.Namespace) -> int:
    from tools.release import tagged_release
    from tools.smoke.build import build
    from tools.smoke.commands import check_contents

    tag = parsed.tag or os.environ.get("GITHUB_REF_NAME")
    if not tag:
        raise ToolError("name the release with --tag")
    release = tagged_release(root, tag)
    dist: Path = (root / parsed.dist).resolve()
    if dist.exists() and any(dist.iterdir()):
        raise ToolError(f"{parsed.dist} holds something; everything in it would be published")
    build(root, release.members, dist)
    # Everything in the folder is published, so what the build leaves there besides has to go.
    (dist / ".gitignore").unlink(missing_ok=True)
    check_contents(root, release.members, dist)
    say(f"{release.tag}: {len(list(dist.iterdir()))} files in {parsed.dist}")
    return 0
