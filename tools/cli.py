"""The command line of `python3 -m tools`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.errors import ToolError
from tools.lock import lock, write_tool_requirements
from tools.sync import sync
from tools.workspace import REPOSITORY_ROOT

Command = Callable[[Path, argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None, *, root: Path = REPOSITORY_ROOT) -> int:
    """Run one command and return the process's exit code: 0, or 1 where something is wrong."""
    parsed = _parser().parse_args(arguments)
    command: Command = parsed.command
    try:
        return command(root, parsed)
    except ToolError as error:
        print(f"tools: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tools", description="Keep this repository.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    added = commands.add_parser("sync", help="make .venv hold exactly what uv.lock says")
    added.set_defaults(command=_sync)

    added = commands.add_parser("lock", help="resolve dependencies and write uv.lock")
    added.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    added.add_argument("--upgrade-package", action="append", default=[], metavar="NAME")
    added.add_argument("--tools", action="store_true", help="also pin uv and the build backend anew")
    added.set_defaults(command=_lock)
    return parser


def _sync(root: Path, _: argparse.Namespace) -> int:
    sync(root)
    return 0


def _lock(root: Path, parsed: argparse.Namespace) -> int:
    if parsed.tools:
        write_tool_requirements(root)
    lock(root, parsed.upgrade_package, upgrade=parsed.upgrade)
    return 0
