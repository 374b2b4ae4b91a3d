"""How an area of `tools` adds its commands to the one command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tools.console import run_for_code
from tools.sync import SHARED, sync

Command = Callable[[Path, argparse.Namespace], int]

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]  # pyright: ignore[reportPrivateUsage] - argparse gives it no public name


class Commands:
    """The commands of one parser; a command may have commands of its own."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parsers: SubParsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(self, name: str, command: Command, text: str) -> argparse.ArgumentParser:
        """Add a command and return its parser, which takes the command's arguments."""
        parser = self._parsers.add_parser(name, help=text, description=text)
        parser.set_defaults(run_command=command)
        return parser

    def group(self, name: str, text: str) -> Commands:
        """Add a word under which further commands stand, as in `tools engine start`."""
        return Commands(self._parsers.add_parser(name, help=text, description=text))


def in_environment(command: Command) -> Command:
    """Let a command run inside `.venv`, for one that needs more than the standard library."""

    def run_there(root: Path, parsed: argparse.Namespace) -> int:
        environment = sync(root)
        if not inside(root):
            line = [environment / "bin/python", "-m", "tools", *parsed.given]
            return run_for_code(line, cwd=root)
        return command(root, parsed)

    return run_there


def inside(root: Path) -> bool:
    """Say whether this process runs in `.venv`."""
    return Path(sys.prefix).resolve() == (root / SHARED).resolve()
