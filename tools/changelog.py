"""The changelog: fragments in `changes/`, one per user-visible change, and the sections they fill.

A fragment is a file `GROUP.KIND.any-words.md` that holds one or more sentences for users. Releasing
a group moves its fragments into a new section of CHANGELOG.md. So two branches that each note a
change never edit the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.errors import ToolError

CHANGELOG = Path("CHANGELOG.md")
FRAGMENTS = Path("changes")

# Kinds of change with their headings, in the order in which a section lists them.
KINDS = {
    "security": "Security",
    "removed": "Removed",
    "changed": "Changed",
    "added": "Added",
    "fixed": "Fixed",
}

_NOT_A_FRAGMENT = "README.md"
_NAME = re.compile(r"(?P<group>[a-z0-9-]+)\.(?P<kind>[a-z]+)\.(?P<slug>[a-z0-9-]+)\.md")
_SECTION = re.compile(r"^## (?P<group>[a-z0-9-]+) (?P<version>\S+) - (?P<date>\d{4}-\d\d-\d\d)$")


@dataclass(frozen=True)
class Fragment:
    """One user-visible change that no release holds yet."""

    path: Path
    group: str
    kind: str
    text: str


@dataclass(frozen=True)
class Section:
    """One release in CHANGELOG.md."""

    group: str
    version: str
    date: str
    line: int


def read_fragments(root: Path, groups: Iterable[str]) -> tuple[list[Fragment], list[str]]:
    """Return the fragments, in order of their names, and what is wrong with those left out."""
    known = sorted(groups)
    found: list[Fragment] = []
    problems: list[str] = []
    # Without the ending, so that a longer name comes after the one that it begins with.
    for path in sorted((root / FRAGMENTS).glob("*"), key=lambda found: found.stem):
        shown = path.relative_to(root)
        if path.name == _NOT_A_FRAGMENT:
            continue
        match = _NAME.fullmatch(path.name)
        if match is None or match["group"] not in known or match["kind"] not in KINDS:
            problems.append(
                f"{shown}: name it GROUP.KIND.few-words.md with a group of {', '.join(known)} "
                f"and a kind of {', '.join(KINDS)}"
            )
            continue
        text = path.read_text(encoding="utf-8").strip()
        if not text or text.startswith(("#", "-", "*")):
            problems.append(f"{shown}: say in plain sentences what changes for users")
            continue
        found.append(Fragment(shown, match["group"], match["kind"], text))
    return found, problems


def read_sections(text: str) -> list[Section]:
    """Return the releases in a changelog's text, from the top.

    Raises:
        ToolError: a heading of the second level is not `## GROUP VERSION - DATE`.
    """
    sections: list[Section] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("## "):
            continue
        match = _SECTION.match(line)
        if match is None:
            raise ToolError(
                f"{CHANGELOG}:{number}: write the heading as `## GROUP VERSION - YYYY-MM-DD`; "
                f"what is not released belongs into {FRAGMENTS}/"
            )
        sections.append(Section(match["group"], match["version"], match["date"], number))
    return sections


def changelog_problems(root: Path, versions: Mapping[str, str]) -> list[str]:
    """Return what in the changelog and its fragments does not fit the groups' versions.

    Args:
        versions: Version of each group in the pyprojects.
    """
    from packaging.version import InvalidVersion, Version  # only `.venv` surely has it

    path = root / CHANGELOG
    if not path.exists():
        return [f"{CHANGELOG} does not exist; write one with a title"]
    try:
        sections = read_sections(path.read_text(encoding="utf-8"))
    except ToolError as error:
        return [str(error)]
    fragments, problems = read_fragments(root, versions)
    newest: dict[str, Version] = {}  # of each group, while reading from the top
    last: dict[str, Version] = {}
    for section in sections:
        where = f"{CHANGELOG}:{section.line}"
        if section.group not in versions:
            problems.append(f"{where}: {section.group} is no version group")
            continue
        try:
            version = Version(section.version)
        except InvalidVersion:
            problems.append(f"{where}: {section.version!r} is not a valid version")
            continue
        if section.group in last and version >= last[section.group]:
            problems.append(
                f"{where}: {section.group} {version} stands below {last[section.group]}; "
                "newer releases come first and each only once"
            )
        last[section.group] = version
        newest.setdefault(section.group, version)
    unreleased = {fragment.group for fragment in fragments}
    for group, text in versions.items():
        try:
            current = Version(text)
        except InvalidVersion:
            continue  # the version rules name it
        if group in newest and newest[group] > current:
            problems.append(
                f"{CHANGELOG}: {group} {newest[group]} is newer than {current} in the pyprojects; "
                f"run `python3 -m tools versions set {group} {newest[group]} --write`"
            )
        elif newest.get(group) != current and group not in unreleased:
            problems.append(
                f"{CHANGELOG}: nothing says what {group} {current} changes; add a fragment "
                f"{FRAGMENTS}/{group}.changed.few-words.md"
            )
    return problems


def section_text(group: str, version: str, date: str, fragments: Sequence[Fragment]) -> str:
    """Return the section that these fragments of one group become."""
    parts = [f"## {group} {version} - {date}"]
    for kind, heading in KINDS.items():
        items = [_item(fragment.text) for fragment in fragments if fragment.kind == kind]
        if items:
            parts += [f"### {heading}", "\n".join(items)]
    return "\n\n".join(parts) + "\n"


def with_section(changelog: str, section: str) -> str:
    """Return the changelog's text with a section above all others."""
    head, separator, rest = changelog.partition("\n## ")
    return f"{head.rstrip()}\n\n{section}" + (f"\n## {rest}" if separator else "")


def release_notes(changelog: str, group: str, version: str) -> str:
    """Return what the section of one release says, without its heading.

    Raises:
        ToolError: there is no such section.
    """
    lines = changelog.splitlines()
    sections = read_sections(changelog)
    for index, section in enumerate(sections):
        if (section.group, section.version) == (group, version):
            end = sections[index + 1].line - 1 if index + 1 < len(sections) else len(lines)
            return "\n".join(lines[section.line : end]).strip() + "\n"
    raise ToolError(
        f"{CHANGELOG} has no section `## {group} {version} - ...`; "
        f"run `python3 -m tools versions set {group} {version} --write`"
    )


def _item(text: str) -> str:
    first, *rest = text.splitlines()
    return "\n".join([f"- {first}", *(f"  {line}".rstrip() for line in rest)])
