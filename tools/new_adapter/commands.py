"""The command that writes the package of a new adapter."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.commands import Commands
from tools.compatibility import updated_readmes
from tools.console import say
from tools.new_adapter.files import Adapter, package_files, plan_adapter
from tools.new_adapter.root_edits import edited_files
from tools.workspace import read_members


def add_to(commands: Commands) -> None:
    """Add the commands of this area."""
    text = "write a package for an adapter of another agent framework"
    added = commands.add("new-adapter", _new_adapter, text)
    added.add_argument("name", help="name of its folder, such as `other-agents`")


def _new_adapter(root: Path, parsed: argparse.Namespace) -> int:
    adapter = write_adapter(root, parsed.name)
    say(f"{adapter.folder} is written; now")
    say("  1. add the framework to the dependencies in its pyproject.toml")
    say("  2. python3 -m tools lock, then make sync")
    say("  3. python3 -m tools api --write")
    say(f"  4. write code until this passes: pytest {adapter.folder}/tests")
    say("docs/how-to/add-an-adapter.md walks through it")
    return 0


def write_adapter(root: Path, name: str) -> Adapter:
    """Write the package and name it wherever packages are named.

    Raises:
        ToolError: The name cannot be used, or a file lacks its place for packages. Nothing is
            written then.
    """
    adapter = plan_adapter(root, name)
    texts = {**edited_files(root, adapter), **package_files(root, adapter)}
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    (root / adapter.folder / "ci.sh").chmod(0o755)
    for path, text in updated_readmes(root, read_members(root)).items():
        (root / path).write_text(text, encoding="utf-8")
    return adapter
