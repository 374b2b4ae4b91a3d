from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

import pytest

from tools import checks
from tools.cli import main
from tools.workspace import REPOSITORY_ROOT, read_toml


class Commands:
    """Stands in for starting programs: keeps what would run, fails what it is told to fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.codes: dict[str, int] = {}

    def __call__(
        self,
        command: list[object],
        *,
        cwd: Path,
        env: object = None,
        output: IO[bytes] | None = None,
    ) -> int:
        first, *rest = [str(part) for part in command]
        program = Path(first)
        shown = str(program.relative_to(cwd)) if program.is_relative_to(cwd) else first
        line = " ".join([shown, *rest])
        self.lines.append(line.replace(f"{cwd}/", ""))
        if output is not None:
            output.write(f"{program.name} wrote this\n".encode())
        return next((code for part, code in self.codes.items() if part in line), 0)


PARALLEL_PYTEST = " ".join(["pytest", *checks.IN_PARALLEL])


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    started = Commands()

    def shared(root: Path) -> Path:
        return root / ".venv"

    def alone(root: Path, name: str) -> Path:
        return root / ".venvs" / name

    monkeypatch.setattr(checks, "run_for_code", started)
    monkeypatch.setattr(checks, "sync", shared)
    monkeypatch.setattr(checks, "sync_alone", alone)
    monkeypatch.delenv("DEXCLI", raising=False)
    return started


def test_a_package_is_linted_typed_and_tested_in_an_environment_of_its_own(
    workspace: Path, commands: Commands
) -> None:
    folder = str(workspace / "packages/agents/core")
    assert main(["package-ci", folder, "--", "-k", "one"], root=workspace) == 0
    assert sorted(commands.lines) == [
        ".venvs/core/bin/pyright --pythonpath .venvs/core/bin/python packages/agents/core",
        f".venvs/core/bin/{PARALLEL_PYTEST} packages/agents/core/tests -k one",
        ".venvs/core/bin/ruff check packages/agents/core",
        ".venvs/core/bin/ruff format --check packages/agents/core",
    ]


def test_the_shared_environment_and_one_step_can_be_asked_for(
    workspace: Path, commands: Commands
) -> None:
    folder = str(workspace / "packages/agents/core")
    assert main(["package-ci", folder, "--shared", "--only", "tests"], root=workspace) == 0
    assert commands.lines == [f".venv/bin/{PARALLEL_PYTEST} packages/agents/core/tests"]


def test_a_named_engine_that_does_not_exist_is_refused_before_anything_runs(
    workspace: Path,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DEXCLI", str(workspace / "no-such-dexcli"))
    assert main(["package-ci", str(workspace / "packages/agents/core")], root=workspace) == 1
    assert commands.lines == []
    assert "no-such-dexcli, which is no program" in capsys.readouterr().err


def test_a_failed_step_fails_the_package_and_the_later_steps_still_run(
    workspace: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.codes["ruff check"] = 1
    folder = str(workspace / "packages/agents/core")
    assert main(["package-ci", folder], root=workspace) == 1
    assert len(commands.lines) == 4
    assert "failed: ruff check packages/agents/core" in capsys.readouterr().err


def test_a_folder_that_is_no_package_is_refused(
    workspace: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["package-ci", str(workspace)], root=workspace) == 1
    assert commands.lines == []
    assert "is no package of this workspace" in capsys.readouterr().err


CI_SCRIPTS = sorted(path for path in REPOSITORY_ROOT.glob("packages/*/*/ci.sh"))


@pytest.mark.parametrize("script", CI_SCRIPTS, ids=lambda path: path.parent.name)
def test_a_ci_script_works_from_any_folder_and_keeps_what_dexcli_means(
    script: Path, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$PWD" "$DEXCLI" "$@"\n')
    python.chmod(0o755)
    for given, meant in [
        ("bin/dexcli", f"{tmp_path}/bin/dexcli"),
        ("dexcli", "dexcli"),
        ("/opt/dexcli", "/opt/dexcli"),
    ]:
        env = {**os.environ, "PYTHON": str(python), "DEXCLI": given}
        command = [script, "--only", "lint"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.stdout.split() == [
            str(REPOSITORY_ROOT),
            meant,
            *["-m", "tools", "package-ci", str(script.parent), "--only", "lint"],
        ]


def test_testing_runs_every_discovered_script_in_order_then_the_rest(
    workspace: Path, commands: Commands
) -> None:
    (workspace / "tests").mkdir()
    assert main(["test"], root=workspace) == 0
    assert commands.lines == [
        "packages/engine/embedded/ci.sh --shared --only tests",
        "packages/agents/core/ci.sh --shared --only tests",
        "packages/agents/adapter/ci.sh --shared --only tests",
        f".venv/bin/{PARALLEL_PYTEST} tests",
    ]


@pytest.mark.parametrize(
    ("options", "types"),
    [([], "pyright"), (["--besides-packages"], "pyright conftest.py tools tests docs")],
)
def test_checking_looks_at_the_whole_repository(
    workspace: Path,
    commands: Commands,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    types: str,
) -> None:
    commands.codes["pyright"] = 1
    assert main(["check", *options], root=workspace) == 1
    assert sorted(commands.lines) == [
        f".venv/bin/{types}",
        ".venv/bin/pytest tests --ignore=tests/pages",
        ".venv/bin/ruff check .",
        ".venv/bin/ruff format --check .",
    ]
    assert f"what `{types}` wrote:\npyright wrote this\n" in capsys.readouterr().err


def test_types_are_checked_everywhere_by_the_packages_and_the_rest_together() -> None:
    settings = read_toml(REPOSITORY_ROOT / "pyproject.toml")["tool"]["pyright"]
    assert {*checks.OF_NO_PACKAGE, "packages"} == {*settings["include"]}


def test_testing_alone_runs_each_script_as_it_is(workspace: Path, commands: Commands) -> None:
    (workspace / "tests/pages").mkdir(parents=True)
    assert main(["test", "--alone"], root=workspace) == 0
    assert commands.lines == [
        "packages/engine/embedded/ci.sh",
        "packages/agents/core/ci.sh",
        "packages/agents/adapter/ci.sh",
        f".venv/bin/{PARALLEL_PYTEST} tests/pages",
    ]


def test_one_failed_package_fails_the_whole_and_is_named(
    workspace: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.codes["agents/core/ci.sh"] = 1
    (workspace / "tests/pages").mkdir(parents=True)
    assert main(["test"], root=workspace) == 1
    assert len(commands.lines) == 4
    assert "failed: core\n" in capsys.readouterr().err


@pytest.mark.parametrize("line", [["crash", "--kills", "3"], ["soak", "--minutes", "1"]])
def test_a_long_run_that_finds_no_test_fails(
    workspace: Path, commands: Commands, capsys: pytest.CaptureFixture[str], line: list[str]
) -> None:
    commands.codes[f"pytest -m {line[0]}"] = 5
    assert main(line, root=workspace) == 1
    assert f"no test is marked `{line[0]}`, so nothing ran" in capsys.readouterr().err


@pytest.mark.parametrize("kills", ["0", "-1", "many"])
def test_a_crash_run_must_kill_something(workspace: Path, kills: str) -> None:
    with pytest.raises(SystemExit):
        main(["crash", "--kills", kills], root=workspace)
