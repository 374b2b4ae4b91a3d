"""Commands about versions and the changelog."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from tools.changelog import read_fragments, section_text
from tools.commands import Commands, in_environment
from tools.console import say
from tools.errors import ToolError


def add_to(commands: Commands) -> None:
    """Add the commands of this area."""
    versions = commands.group("versions", "check and change the versions of the packages")
    text = "check versions, pins, compatibility tables and the changelog"
    versions.add("check", in_environment(_check), text)

    text = "show, or with --write make, the change that gives a group this version"
    added = versions.add("set", in_environment(_set), text)
    added.add_argument("group")
    added.add_argument("version")
    _add_write(added)

    text = "show, or with --write make, the change to a group's next version"
    added = versions.add("bump", in_environment(_bump), text)
    added.add_argument("group")
    added.add_argument("part", choices=["major", "minor", "patch"])
    _add_write(added)

    text = "show, or with --write bring up to date, the compatibility tables of the READMEs"
    added = versions.add("tables", in_environment(_tables), text)
    added.add_argument("--write", action="store_true", help="write the READMEs")

    text = "show what the next release of a group will say; `versions set` writes it"
    added = commands.add("changelog", in_environment(_changelog), text)
    added.add_argument("group", nargs="?", help="all groups when left out")


def _add_write(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", action="store_true", help="write it; the tree must be clean")
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    parser.add_argument("--date", default=today, metavar="YYYY-MM-DD", help="date of the release")


def _check(root: Path, _: argparse.Namespace) -> int:
    from tools.versions import version_problems

    problems = version_problems(root)
    if problems:
        raise ToolError("\n".join(problems))
    say("versions, pins, tables and changelog agree")
    return 0


def _set(root: Path, parsed: argparse.Namespace) -> int:
    return _change(root, parsed, parsed.version)


def _bump(root: Path, parsed: argparse.Namespace) -> int:
    from tools.bump import current_version, next_version

    return _change(root, parsed, next_version(current_version(root, parsed.group), parsed.part))


def _change(root: Path, parsed: argparse.Namespace, version: str) -> int:
    from tools.bump import apply, diff_of, plan

    change = plan(root, parsed.group, version, parsed.date)
    print(diff_of(root, change), end="")
    if not parsed.write:
        say(f"{parsed.group} {version}: nothing is written yet; add --write")
        return 0
    apply(root, change)
    say(f"{parsed.group} is at {version}; commit, then `python3 -m tools release check`")
    return 0


def _tables(root: Path, parsed: argparse.Namespace) -> int:
    from tools.compatibility import updated_readmes
    from tools.workspace import read_members

    for path, text in updated_readmes(root, read_members(root)).items():
        if (root / path).read_text(encoding="utf-8") == text:
            continue
        print(path)
        if parsed.write:
            (root / path).write_text(text, encoding="utf-8")
    return 0


def _changelog(root: Path, parsed: argparse.Namespace) -> int:
    from tools.versions import group_versions, read_groups
    from tools.workspace import read_members

    groups = read_groups(root)
    if parsed.group is not None and parsed.group not in groups:
        raise ToolError(f"{parsed.group} is no version group; there are {', '.join(groups)}")
    versions = group_versions(groups, read_members(root))
    fragments, problems = read_fragments(root, groups)
    if problems:
        raise ToolError("\n".join(problems))
    for group in groups if parsed.group is None else [parsed.group]:
        own = [fragment for fragment in fragments if fragment.group == group]
        if own:
            print(section_text(group, versions[group], "unreleased", own))
    return 0
