"""Commands about the workspace as a whole: installing, locking, discovering, checking, testing."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.changed import changed_jobs, for_github
from tools.checks import (
    CRASH_KILLS,
    SOAK_MINUTES,
    STEPS,
    check_everything,
    check_package,
    long_tests,
    run_tests,
)
from tools.commands import Commands
from tools.discover import as_matrix, as_text, discover
from tools.lock import lock, write_tool_requirements
from tools.sync import sync


def add_to(commands: Commands) -> None:
    """Add the commands of this area."""
    commands.add("sync", _sync, "make .venv hold exactly what uv.lock says")

    added = commands.add("lock", _lock, "resolve dependencies and write uv.lock")
    added.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    added.add_argument("--upgrade-package", action="append", default=[], metavar="NAME")
    added.add_argument("--tools", action="store_true", help="pin uv and the build backend anew")

    added = commands.add("discover", _discover, "list the ci.sh of every package")
    added.add_argument("--json", action="store_true", help="print a CI matrix instead of paths")
    added.add_argument(
        "--changed-since",
        metavar="REF",
        help="only packages that a change since REF touches, and those that depend on them",
    )
    added.add_argument(
        "--for-github",
        action="store_true",
        help="write the matrix to $GITHUB_OUTPUT; on a pull request only what it touches",
    )

    text = "lint, type-check and test one package alone; what follows `--` goes to pytest"
    added = commands.add("package-ci", _package_ci, text)
    added.add_argument("folder", type=Path)
    added.add_argument("--only", action="append", choices=STEPS, help="only this step; repeatable")
    added.add_argument(
        "--shared", action="store_true", help="in the workspace's .venv, which holds every package"
    )

    text = "lint and type-check everything and test the repository's rules"
    added = commands.add("check", _check, text)
    added.add_argument(
        "--besides-packages",
        action="store_true",
        help="leave the types of the packages to their ci.sh, as `test --alone` runs them",
    )

    added = commands.add("test", _test, "run every test but the long ones")
    added.add_argument(
        "--alone",
        action="store_true",
        help="run each ci.sh in full, in an environment of its own, but no rules of the repository",
    )

    added = commands.add("crash", _crash, "run the tests that kill real processes many times")
    added.add_argument(
        "--kills", type=_positive, default=CRASH_KILLS, help="kills asked of each test"
    )

    added = commands.add("soak", _soak, "run the tests that take long on purpose")
    added.add_argument("--minutes", type=_positive, default=SOAK_MINUTES, help="time for each test")


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
    if parsed.for_github:
        for_github(root)
        return 0
    since: str | None = parsed.changed_since
    jobs = discover(root) if since is None else changed_jobs(root, since)
    print(as_matrix(jobs) if parsed.json else as_text(jobs))
    return 0


def _package_ci(root: Path, parsed: argparse.Namespace) -> int:
    steps = parsed.only or STEPS
    return check_package(root, parsed.folder, steps, parsed.after_dashes, shared=parsed.shared)


def _check(root: Path, parsed: argparse.Namespace) -> int:
    return check_everything(root, besides_packages=parsed.besides_packages)


def _test(root: Path, parsed: argparse.Namespace) -> int:
    return run_tests(root, alone=parsed.alone)


def _crash(root: Path, parsed: argparse.Namespace) -> int:
    return long_tests(root, "crash", "DEX_CRASH_KILLS", parsed.kills)


def _soak(root: Path, parsed: argparse.Namespace) -> int:
    return long_tests(root, "soak", "DEX_SOAK_MINUTES", parsed.minutes)
