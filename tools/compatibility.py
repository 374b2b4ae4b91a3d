"""The compatibility tables in the READMEs, written from what the pyprojects say.

A table stands between two comments and is never edited by hand. The root README lists every
package; a package's own README lists that package.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.errors import ToolError
from tools.workspace import Member

BEGIN = "<!-- compatibility: written by `python3 -m tools versions tables --write` -->"
END = "<!-- /compatibility -->"

_HEAD = ("Package", "Version", "Python", "Needs")


def compatibility_problems(root: Path, members: Sequence[Member]) -> list[str]:
    """Return which READMEs lack the table or hold one that is out of date."""
    problems: list[str] = []
    for path, shown in _readmes(members).items():
        if not (root / path).exists():
            problems.append(f"{path} does not exist; every package needs one")
            continue
        text = (root / path).read_text(encoding="utf-8")
        try:
            if text != with_table(text, table_of(shown)):
                problems.append(
                    f"{path}: the compatibility table is out of date; "
                    "run `python3 -m tools versions tables --write`"
                )
        except ToolError as error:
            problems.append(f"{path}: {error}")
    return problems


def updated_readmes(root: Path, members: Sequence[Member]) -> dict[Path, str]:
    """Return the text of every README with its table brought up to date.

    Raises:
        ToolError: a README is missing or has no place for the table.
    """
    updated: dict[Path, str] = {}
    for path, shown in _readmes(members).items():
        try:
            text = (root / path).read_text(encoding="utf-8")
            updated[path] = with_table(text, table_of(shown))
        except (FileNotFoundError, ToolError) as error:
            raise ToolError(f"{path}: {error}") from error
    return updated


def with_table(text: str, table: str) -> str:
    """Return the README's text with this table between the two comments.

    Raises:
        ToolError: the comments are not there exactly once, in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ToolError(f"put the lines `{BEGIN}` and `{END}` where the table shall be, once each")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def table_of(members: Sequence[Member]) -> str:
    """Return the Markdown table for these packages."""
    rows = [(f"`{m.name}`", m.version, m.requires_python, _needs(m)) for m in members]
    lines = [_HEAD, ("---",) * len(_HEAD), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _needs(member: Member) -> str:
    needs = [f"`{text}`" for text in member.dependencies]
    for extra, texts in member.extras.items():
        needs += [f"with `[{extra}]`: `{text}`" for text in texts]
    return ", ".join(needs)


def _readmes(members: Sequence[Member]) -> dict[Path, Sequence[Member]]:
    own = {Path(member.folder) / "README.md": [member] for member in members}
    return {Path("README.md"): members, **own}
