from __future__ import annotations

from pathlib import Path

import pytest

from tools import checks
from tools.cli import main


class Commands:
    """Stands in for starting programs: keeps what would run, fails what it is told to fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.codes: dict[str, int] = {}

    def __call__(self, command: list[object], *, cwd: Path, env: object = None) -> int:
        first, *rest = [str(part) for part in command]
        program = Path(first)
        shown = str(program.relative_to(cwd)) if program.is_relative_to(cwd) else first
        line = " ".join([shown.removeprefix(".venv/bin/"), *rest])
        self.lines.append(line)
        return next((code for part, code in self.codes.items() if part in line), 0)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    started = Commands()

    def already_synced(root: Path) -> None:
        assert root.exists()

    monkeypatch.setattr(checks, "run_for_code", started)
    monkeypatch.setattr(checks, "sync", already_synced)
    return started


def test_a_package_is_linted_typed_and_tested_alone(workspace: Path, commands: Commands) -> None:
    folder = str(workspace / "packages/agents/core")
    assert main(["package-ci", folder, "--", "-k", "one"], root=workspace) == 0
    assert commands.lines == [
        "ruff check packages/agents/core",
        "ruff format --check packages/agents/core",
        "pyright packages/agents/core",
        "pytest packages/agents/core/tests -k one",
    ]


def test_one_step_can_be_asked_for(workspace: Path, commands: Commands) -> None:
    folder = str(workspace / "packages/agents/core")
    assert main(["package-ci", folder, "--only", "types"], root=workspace) == 0
    assert commands.lines == ["pyright packages/agents/core"]


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


def test_testing_runs_every_discovered_script_in_order_then_the_rest(
    workspace: Path, commands: Commands
) -> None:
    (workspace / "tests").mkdir()
    assert main(["test"], root=workspace) == 0
    assert commands.lines == [
        "packages/engine/embedded/ci.sh --only tests",
        "packages/agents/core/ci.sh --only tests",
        "packages/agents/adapter/ci.sh --only tests",
        "pytest tests",
    ]


def test_one_failed_package_fails_the_whole_and_is_named(
    workspace: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.codes["agents/core/ci.sh"] = 1
    (workspace / "tests").mkdir()
    assert main(["test"], root=workspace) == 1
    assert len(commands.lines) == 4
    assert "failed: core\n" in capsys.readouterr().err


def test_a_crash_run_that_finds_no_test_fails(
    workspace: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.codes["pytest -m crash"] = 5
    assert main(["crash", "--kills", "3"], root=workspace) == 1
    assert "nothing was killed" in capsys.readouterr().err


@pytest.mark.parametrize("kills", ["0", "-1", "many"])
def test_a_crash_run_must_kill_something(workspace: Path, kills: str) -> None:
    with pytest.raises(SystemExit):
        main(["crash", "--kills", kills], root=workspace)
