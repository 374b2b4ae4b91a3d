"""The command line of `python3 -m tools`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.checks import CRASH_KILLS, STEPS, check_all, check_package, crash, test_all
from tools.console import run_for_code, say
from tools.discover import as_matrix, as_text, discover
from tools.errors import ToolError
from tools.lock import lock, write_tool_requirements
from tools.sync import sync
from tools.workspace import REPOSITORY_ROOT

Command = Callable[[Path, argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None, *, root: Path = REPOSITORY_ROOT) -> int:
    """Run one command and return the process's exit code: 0, or 1 where something is wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    parsed = _parser().parse_args(given[:split])
    parsed.after_dashes = given[split + 1 :]
    command: Command = parsed.run_command
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

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run_command=command)
        return added

    add("sync", _sync, "make .venv hold exactly what uv.lock says")

    added = add("lock", _lock, "resolve dependencies and write uv.lock")
    added.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    added.add_argument("--upgrade-package", action="append", default=[], metavar="NAME")
    added.add_argument("--tools", action="store_true", help="pin uv and the build backend anew")

    added = add("discover", _discover, "list the ci.sh of every package in dependency order")
    added.add_argument("--json", action="store_true", help="print a CI matrix instead of paths")

    added = add("versions", _versions, "check the versions and pins of the packages")
    added.add_argument("action", choices=["check"])

    text = "lint, type-check and test one package; what follows `--` goes to pytest"
    added = add("package-ci", _package_ci, text)
    added.add_argument("folder", type=Path)
    added.add_argument("--only", action="append", choices=STEPS, help="only this step; repeatable")

    add("check", _check, "lint and type-check everything and test the repository's rules")
    add("test", _test, "run every test but the long ones")

    added = add("crash", _crash, "run the tests that kill real processes many times")
    added.add_argument(
        "--kills", type=_positive, default=CRASH_KILLS, help="kills asked of each test"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _sync(root: Path, _: argparse.Namespace) -> int:
    sync(root)
    return 0


def _lock(root: Path, parsed: argparse.Namespace) -> int:
    if parsed.tools:
        write_tool_requirements(root)
    lock(root, parsed.upgrade_package, upgrade=parsed.upgrade)
    return 0


def _discover(root: Path, parsed: argparse.Namespace) -> int:
    jobs = discover(root)
    print(as_matrix(jobs) if parsed.json else as_text(jobs))
    return 0


def _versions(root: Path, parsed: argparse.Namespace) -> int:
    sync(root)
    if Path(sys.prefix).resolve() != (root / ".venv").resolve():
        line = [root / ".venv/bin/python", "-m", "tools", "versions", parsed.action]
        return run_for_code(line, cwd=root)
    from tools.versions import version_problems  # needs `packaging`, which only .venv surely has

    problems = version_problems(root)
    if problems:
        raise ToolError("\n".join(problems))
    say("versions and pins agree")
    return 0


def _package_ci(root: Path, parsed: argparse.Namespace) -> int:
    return check_package(root, parsed.folder, parsed.only or STEPS, parsed.after_dashes)


def _check(root: Path, _: argparse.Namespace) -> int:
    return check_all(root)


def _test(root: Path, _: argparse.Namespace) -> int:
    return test_all(root)


def _crash(root: Path, parsed: argparse.Namespace) -> int:
    return crash(root, parsed.kills)
