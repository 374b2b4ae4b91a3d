"""Runs linters, the type checker and tests with what an environment of this repository holds."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

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

# Most tests wait for processes more than they compute, so two processes of tests per core. A worker
# that has run out of tests takes some of another's.
_MOST_PROCESSES = 8
IN_PARALLEL = (
    "-n",
    str(min(2 * (os.cpu_count() or 1), _MOST_PROCESSES)),
    "--dist",
    "worksteal",
)

_NO_TESTS_COLLECTED = 5

# The code of the pages, which takes too long for `make check`.
_PAGES = "tests/pages"

# What is of no package, so that no package's script looks at its types.
OF_NO_PACKAGE = ("conftest.py", "tools", "tests", "docs")


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
    types = lines["types"] if "types" in steps else []
    others = [line for step in steps if step != "types" for line in lines[step]]
    return _run_all(root, environment, others, beside=types)


def check_everything(root: Path, *, besides_packages: bool = False) -> int:
    """Lint and type-check the whole repository and test its rules.

    Args:
        root: The repository.
        besides_packages: Leave the types of the packages to their scripts, which check the same
            files, each in an environment of its own.
    """
    environment = sync(root)
    types = ["pyright", *(OF_NO_PACKAGE if besides_packages else ())]
    rules = ["pytest", "tests", f"--ignore={_PAGES}"]
    return _run_all(root, environment, [*_lint("."), rules], beside=[types])


def run_tests(root: Path, extra: Mapping[str, str] | None = None, *, alone: bool = False) -> int:
    """Run the tests of every discovered package, then those of the tools and the repository.

    Args:
        root: The repository.
        extra: Environment variables for the packages' scripts, such as `DEXCLI`.
        alone: Run each package's script as it is, lint and types included, in an environment of its
            own, instead of the tests alone in `.venv`. As lint and types are, the repository's
            rules are then left to `check_everything`.
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
    others = [
        name
        for name in ("tools/tests", _PAGES if alone else "tests", "docs")
        if (root / name).is_dir()
    ]
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


def _run_all(
    root: Path,
    environment: Path,
    lines: Sequence[Sequence[str]],
    beside: Sequence[Sequence[str]] = (),
) -> int:
    """Run programs one after another, and those of `beside` meanwhile; return 1 where one failed.

    What those of `beside` write is shown at the end. The type checker uses one core, and tests wait
    as often as they compute, so together they are done sooner.
    """
    failed: list[Sequence[str]] = []

    def run_each(some: Sequence[Sequence[str]], output: IO[bytes] | None = None) -> None:
        failed.extend(line for line in some if _run(root, environment, line, output=output) != 0)

    with tempfile.TemporaryFile() as written, ThreadPoolExecutor() as threads:
        meanwhile = threads.submit(run_each, beside, written)
        run_each(lines)
        meanwhile.result()
        written.seek(0)
        for line in beside:
            say(f"what `{' '.join(line)}` wrote:")
        sys.stderr.write(written.read().decode(errors="replace"))
    for line in failed:
        say(f"failed: {' '.join(line)}")
    return 1 if failed else 0


def _run(
    root: Path,
    environment: Path,
    line: Sequence[str],
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
) -> int:
    say(" ".join(line))
    command = [environment / "bin" / line[0], *line[1:]]
    return run_for_code(command, cwd=root, env=env, output=output)
