"""The command line of `python3 -m tools`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools import api_commands, release_commands, version_commands, workspace_commands
from tools.benchmarks import commands as benchmark_commands
from tools.commands import Command, Commands
from tools.engine import commands as engine_commands
from tools.errors import ToolError
from tools.new_adapter import commands as adapter_commands
from tools.smoke import commands as smoke_commands
from tools.workspace import REPOSITORY_ROOT

AREAS = (
    workspace_commands,
    version_commands,
    engine_commands,
    smoke_commands,
    release_commands,
    api_commands,
    benchmark_commands,
    adapter_commands,
)


def main(arguments: Sequence[str] | None = None, *, root: Path = REPOSITORY_ROOT) -> int:
    """Run one command and return the process's exit code: 0, or 1 where something is wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    parsed = parser().parse_args(given[:split])
    parsed.given = given
    parsed.after_dashes = given[split + 1 :]
    command: Command = parsed.run_command
    try:
        return command(root, parsed)
    except ToolError as error:
        print(f"tools: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    made = argparse.ArgumentParser(prog="python3 -m tools", description="Keep this repository.")
    commands = Commands(made)
    for area in AREAS:
        area.add_to(commands)
    return made
