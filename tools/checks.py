"""Runs linters, the type checker and tests with what an environment of this repository holds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.console import run_for_code, say
from tools.discover import CiJob, discover
from tools.errors import ToolError
from tools.sync import sync, sync_alone
from tools.uv import base_interpreter

STEPS = ("lint", "types", "tests")

# Where tests that take long may be.
LONG_TESTS = ("packages", "tools/tests")

# How many kills `make crash` asks of each test, and how many minutes `make soak` gives each,
# unless told otherwise.
CRASH_KILLS = 200
SOAK_MINUTES = 30

LONG_TEST_SECONDS = 3 * 60 * 60

# Most tests wait for processes more than they compute, so one process of tests per core. A worker
# that has run out of tests takes some of another's.
IN_PARALLEL = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")

_NO_TESTS_COLLECTED = 5


def check_package(
    root: Path,
    folder: Path,
    steps: Sequence[str],
    pytest_args: Sequence[str],
    *,
    shared: bool = False,
) -> int:
    """Lint, type-check and test one package; return 0, or 1 where something failed.

    It runs in an environment that holds this package and its dev group alone, so a dependency that
    the package forgot to declare fails here; `shared` takes `.venv`, which holds everything.

    Raises:
        ToolError: the folder is no package of this workspace, or DEXCLI names no program.
    """
    job = _job_in(root, folder)
    _check_named_engine()
    environment = sync(root) if shared else sync_alone(root, job.name)
    target = job.folder
    lines: dict[str, list[list[str]]] = {
        "lint": _lint(target),
        # The path of the interpreter, or pyright would look at `.venv`.
        "types": [["pyright", "--pythonpath", str(environment / "bin/python"), target]],
        "tests": [["pytest", *IN_PARALLEL, f"{target}/tests", *pytest_args]],
    }
    return _run_all(root, environment, [line for step in steps for line in lines[step]])


def check_everything(root: Path) -> int:
    """Lint and type-check the whole repository and test its rules, all but running the pages."""
    environment = sync(root)
    return _run_all(
        root, environment, [*_lint("."), ["pyright"], ["pytest", "tests", "--ignore=tests/pages"]]
    )


def run_tests(root: Path, extra: Mapping[str, str] | None = None, *, alone: bool = False) -> int:
    """Run the tests of every discovered package, then those of the tools and the repository.

    Args:
        root: The repository.
        extra: Environment variables for the packages' scripts, such as `DEXCLI`.
        alone: Run each package's script as it is, lint and types included, in an environment of its
            own, instead of the tests alone in `.venv`.
    """
    environment = sync(root)
    # The scripts use the interpreter that runs this, or they would install for another one.
    env = {**os.environ, **(extra or {}), "PYTHON": str(base_interpreter())}
    options = [] if alone else ["--shared", "--only", "tests"]
    failed: list[str] = []
    for job in discover(root):
        say(f"testing {job.name}")
        if run_for_code([root / job.script, *options], cwd=root, env=env) != 0:
            failed.append(job.name)
    others = [name for name in ("tools/tests", "tests", "docs") if (root / name).is_dir()]
    say(f"testing {', '.join(others)}")
    if _run_all(root, environment, [["pytest", *IN_PARALLEL, *others]]) != 0:
        failed.append("the repository's own tests")
    say(f"failed: {', '.join(failed)}" if failed else "all tests passed")
    return 1 if failed else 0


def long_tests(root: Path, mark: str, setting: str, value: int) -> int:
    """Run the tests that carry a mark, which `run_tests` leaves out.

    Args:
        root: The repository.
        mark: `crash` or `soak`.
        setting: Environment variable that tells the tests how much to do.
        value: Its value.

    Raises:
        ToolError: no test carries the mark.
    """
    environment = sync(root)
    env = {**os.environ, setting: str(value)}
    # A soak test watches times and memory, so it has the machine to itself.
    shared = IN_PARALLEL if mark == "crash" else ()
    # `-rP` shows what the tests print: the places they reached, and what they measured.
    line = ["pytest", "-m", mark, "-rP", *shared, "--timeout", str(LONG_TEST_SECONDS)]
    code = _run(root, environment, [*line, *LONG_TESTS], env)
    if code == _NO_TESTS_COLLECTED:
        raise ToolError(f"no test is marked `{mark}`, so nothing ran")
    return 1 if code else 0


def _lint(target: str) -> list[list[str]]:
    return [["ruff", "check", target], ["ruff", "format", "--check", target]]


def _job_in(root: Path, folder: Path) -> CiJob:
    resolved = folder.resolve()
    for job in discover(root):
        if (root / job.folder).resolve() == resolved:
            return job
    raise ToolError(f"{folder} is no package of this workspace; `tools discover` lists them")


def _check_named_engine() -> None:
    named = os.environ.get("DEXCLI")
    if named and shutil.which(named) is None:
        raise ToolError(f"DEXCLI names {named}, which is no program; correct it or unset it")


def _run_all(root: Path, environment: Path, lines: Sequence[Sequence[str]]) -> int:
    failed = [line for line in lines if _run(root, environment, line) != 0]
    for line in failed:
        say(f"failed: {' '.join(line)}")
    return 1 if failed else 0


def _run(
    root: Path, environment: Path, line: Sequence[str], env: Mapping[str, str] | None = None
) -> int:
    say(" ".join(line))
    return run_for_code([environment / "bin" / line[0], *line[1:]], cwd=root, env=env)
