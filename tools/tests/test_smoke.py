from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import commands
from tools.cli import main
from tools.errors import ToolError
from tools.smoke import commands as smoke_commands
from tools.smoke.commands import plan_trials
from tools.smoke.pythons import SUPPORTED, Interpreter, find_pythons
from tools.smoke.requirements import requirements_of
from tools.smoke.trial import PROGRAMS, Trial
from tools.uv import Toolbox
from tools.workspace import REPOSITORY_ROOT, Member, read_members, read_toml

PYTHON = Interpreter("3.11.9", Path("python3.11"), "on PATH")


def write_program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_an_interpreter_on_path_is_found_and_says_its_version(tmp_path: Path) -> None:
    write_program(tmp_path, "python3.11", "echo 3.11.4; echo /opt/py/bin/python3.11")
    found = find_pythons(environment={"PATH": str(tmp_path)})
    assert found == [Interpreter("3.11.4", Path("/opt/py/bin/python3.11"), "on PATH")]


def test_one_behind_a_shim_is_found_by_selecting_its_newest_version(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        "python3.12",
        '[ "$PYENV_VERSION" = 3.12.10 ] || exit 127; echo 3.12.10; echo /v/3.12.10/bin/python',
    )
    write_program(tmp_path, "pyenv", "echo 3.11.7; echo 3.12.9; echo 3.12.10; echo 3.12-dev")
    (found,) = find_pythons(environment={"PATH": str(tmp_path)})
    assert found.version == "3.12.10"
    assert found.minor == "3.12"
    assert found.path == Path("/v/3.12.10/bin/python")
    assert found.found == "through PYENV_VERSION=3.12.10"


def test_a_program_that_is_another_version_than_its_name_says_is_left_out(tmp_path: Path) -> None:
    write_program(tmp_path, "python3.11", "echo 3.10.1; echo /opt/python")
    write_program(tmp_path, "python3.13", "exit 1")
    assert find_pythons(environment={"PATH": str(tmp_path)}) == []


def test_the_supported_versions_are_those_the_packages_claim() -> None:
    for member in read_members(REPOSITORY_ROOT):
        project = read_toml(REPOSITORY_ROOT / member.folder / "pyproject.toml")["project"]
        claimed = [c for c in project["classifiers"] if c.startswith("Programming Language")]
        assert claimed == [f"Programming Language :: Python :: {minor}" for minor in SUPPORTED]


def test_every_package_has_a_program_that_uses_it() -> None:
    for member in read_members(REPOSITORY_ROOT):
        assert (PROGRAMS / f"use_{member.import_name}.py").exists()


def test_own_packages_come_from_files_and_their_requirements_stand_beside_them(
    workspace: Path,
) -> None:
    members = {member.name: member for member in read_members(workspace)}
    files = {name: Path(f"/dist/{name}.whl") for name in members}
    assert requirements_of(members["adapter"], (), members, files) == [
        "adapter @ file:///dist/adapter.whl",
        "core[embedded] @ file:///dist/core.whl",
        "engine @ file:///dist/engine.whl",
        "framework>=3",
    ]
    # Without its extra the core needs no engine.
    assert requirements_of(members["core"], (), members, files) == ["core @ file:///dist/core.whl"]
    assert requirements_of(members["core"], ["embedded"], members, files) == [
        "core[embedded] @ file:///dist/core.whl",
        "engine @ file:///dist/engine.whl",
    ]


def build_nothing(members: Sequence[Member], dist: Path) -> None:
    for member in members:
        (dist / f"{member.import_name}-0.1.0-py3-none-any.whl").touch()
        (dist / f"{member.import_name}-0.1.0.tar.gz").touch()


def test_each_wheel_is_tried_everywhere_and_each_sdist_once(
    workspace: Path, tmp_path: Path
) -> None:
    build_nothing(read_members(workspace), tmp_path)
    pythons = [PYTHON, Interpreter("3.13.1", Path("python3.13"), "on PATH")]
    trials = list(plan_trials(read_members(workspace), tmp_path, pythons, ["newest", "lowest"]))
    names = [str(trial) for trial in trials]
    assert len(names) == len(set(names)) == 2 * 2 * 4 + 3
    assert "core[embedded] (wheel), lowest dependencies, Python 3.13.1" in names
    assert "core (wheel), lowest dependencies, Python 3.13.1" in names
    assert names.count("engine (sdist), newest dependencies, Python 3.11.9") == 1


@pytest.fixture
def trials(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the command with trials that only leave their name; one of `engine` fails."""
    run: list[str] = []

    def synced(root: Path) -> Path:
        return root / ".venv"

    def run_trial(_: Toolbox, trial: Trial) -> str:
        run.append(str(trial))
        if trial.member.name == "engine" and trial.kind == "sdist":
            raise ToolError("it does not import")
        return "it works"

    def built(root: Path, members: Sequence[Member], target: Path) -> None:
        build_nothing(members, target)

    monkeypatch.setattr(commands, "sync", synced)
    monkeypatch.setattr(commands, "inside", lambda _: True)
    monkeypatch.setattr(smoke_commands, "build", built)
    monkeypatch.setattr(smoke_commands, "check_contents", lambda *_: None)
    monkeypatch.setattr(smoke_commands, "open_toolbox", lambda _: None)
    monkeypatch.setattr(smoke_commands, "run_trial", run_trial)
    monkeypatch.setattr(smoke_commands, "find_pythons", lambda wanted: [PYTHON])
    return run


def test_one_failed_trial_fails_the_command_and_the_others_still_run(
    workspace: Path, trials: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["smoke", "--dependencies", "newest"], root=workspace) == 1
    assert len(trials) == 7
    shown = capsys.readouterr().err
    assert "Python 3.11.9: python3.11, on PATH" in shown
    assert "Python 3.13: not on this machine, so not tried" in shown
    assert "it does not import" in shown
    assert "failed: engine (sdist), newest dependencies, Python 3.11.9" in shown
    assert "6 of 7 trials passed on Python 3.11.9" in shown


def test_one_package_can_be_tried_with_given_files(
    workspace: Path, tmp_path: Path, trials: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    dist = tmp_path / "dist"
    dist.mkdir()
    build_nothing([m for m in read_members(workspace) if m.name == "adapter"], dist)
    line = ["smoke", "--package", "adapter", "--dist", str(dist), "--dependencies", "lowest"]
    assert main(line, root=workspace) == 0
    assert len(trials) == 2
    # What was given is not built again, and nothing is added to it.
    assert "2 files are given, building 2 packages" in capsys.readouterr().err
    assert len(list(dist.iterdir())) == 2


def test_a_version_that_is_not_there_and_a_package_that_does_not_exist_are_refused(
    workspace: Path, trials: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["smoke", "--python", "3.12"], root=workspace) == 1
    assert "this machine has no Python 3.12" in capsys.readouterr().err
    assert main(["smoke", "--package", "other"], root=workspace) == 1
    assert "other: no package of this workspace" in capsys.readouterr().err
    assert trials == []
