"""The command `tools api`."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from tools.commands import Commands, in_environment
from tools.console import say


def add_to(commands: Commands) -> None:
    """Add the command of this area."""
    text = "show how the public names of the packages differ from their lists; --write updates them"
    added = commands.add("api", in_environment(_api), text)
    added.add_argument("--write", action="store_true")


def _api(root: Path, parsed: argparse.Namespace) -> int:
    from tools.public_api import api_lines, list_of
    from tools.workspace import read_members

    changed = False
    for member in read_members(root):
        path = list_of(member)
        kept = (
            (root / path).read_text(encoding="utf-8").splitlines() if (root / path).exists() else []
        )
        found = api_lines(member.import_name)
        diff = list(
            difflib.unified_diff(kept, found, f"kept/{path}", f"now/{path}", lineterm="", n=0)
        )
        print("\n".join(diff) + "\n" if diff else "", end="")
        changed = changed or bool(diff)
        if parsed.write:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text("\n".join(found) + "\n", encoding="utf-8")
    if changed and not parsed.write:
        say("`python3 -m tools api --write` makes the lists say what the packages offer")
    return 0
