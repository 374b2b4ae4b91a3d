"""Runs linters, the type checker and tests with what is installed in `.venv`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.console import run_for_code, say
from tools.discover import discover
from tools.errors import ToolError
from tools.sync import sync
from tools.uv import base_interpreter

STEPS = ("lint", "types", "tests")

# How many kills `make crash` asks of each crash test unless told otherwise.
CRASH_KILLS = 200

_NO_TESTS_COLLECTED = 5


def check_package(
    root: Path, folder: Path, steps: Sequence[str], pytest_args: Sequence[str]
) -> int:
    """Lint, type-check and test one package; return 0, or 1 where something failed.

    Raises:
        ToolError: the folder is no package of this workspace.
    """
    target = _inside(root, folder)
    sync(root)
    lines: dict[str, list[list[str]]] = {
        "lint": _lint(target),
        "types": [["pyright", target]],
        "tests": [["pytest", f"{target}/tests", *pytest_args]],
    }
    return _run_all(root, [line for step in steps for line in lines[step]])


def check_all(root: Path) -> int:
    """Lint and type-check the whole repository and run the tests about the repository itself."""
    sync(root)
    return _run_all(root, [*_lint("."), ["pyright"], ["pytest", "tests"]])


def test_all(root: Path) -> int:
    """Run the tests of every discovered package, then those of the tools and the repository."""
    sync(root)
    # The scripts use the interpreter that runs this, or they would install for another one.
    env = {**os.environ, "PYTHON": str(base_interpreter())}
    failed: list[str] = []
    for job in discover(root):
        say(f"testing {job.name}")
        if run_for_code([root / job.script, "--only", "tests"], cwd=root, env=env) != 0:
            failed.append(job.name)
    others = [name for name in ("tools/tests", "tests", "docs") if (root / name).is_dir()]
    say(f"testing {', '.join(others)}")
    if _run_all(root, [["pytest", *others]]) != 0:
        failed.append("the repository's own tests")
    say(f"failed: {', '.join(failed)}" if failed else "all tests passed")
    return 1 if failed else 0


def crash(root: Path, kills: int) -> int:
    """Run the tests that kill real processes, each about `kills` times."""
    sync(root)
    env = {**os.environ, "DEX_CRASH_KILLS": str(kills)}
    code = _run(root, ["pytest", "-m", "crash", "--timeout", "1800", "packages"], env)
    if code == _NO_TESTS_COLLECTED:
        raise ToolError("no test is marked `crash`, so nothing was killed")
    return 1 if code else 0


def _lint(target: str) -> list[list[str]]:
    return [["ruff", "check", target], ["ruff", "format", "--check", target]]


def _inside(root: Path, folder: Path) -> str:
    resolved = folder.resolve()
    for job in discover(root):
        if (root / job.folder).resolve() == resolved:
            return job.folder
    raise ToolError(f"{folder} is no package of this workspace; `tools discover` lists them")


def _run_all(root: Path, lines: Sequence[Sequence[str]]) -> int:
    failed = [line for line in lines if _run(root, line) != 0]
    for line in failed:
        say(f"failed: {' '.join(line)}")
    return 1 if failed else 0


def _run(root: Path, line: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    say(" ".join(line))
    return run_for_code([root / ".venv/bin" / line[0], *line[1:]], cwd=root, env=env)
