from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.cli import main
from tools.errors import ToolError
from tools.sync import is_current, state_digest, sync
from tools.uv import base_interpreter, offline_environment, pinned_version
from tools.workspace import REPOSITORY_ROOT


def install_stamp(workspace: Path) -> None:
    binaries = workspace / ".venv/bin"
    binaries.mkdir(parents=True)
    (binaries / "python").touch()
    (workspace / ".venv/.tools-sync").write_text(state_digest(workspace))


def test_an_installed_state_is_current_until_a_pyproject_or_the_lock_changes(
    workspace: Path,
) -> None:
    install_stamp(workspace)
    assert is_current(workspace / ".venv", state_digest(workspace))
    for name in ("packages/agents/core/pyproject.toml", "pyproject.toml", "uv.lock"):
        with (workspace / name).open("a") as file:
            file.write("# changed\n")
        assert not is_current(workspace / ".venv", state_digest(workspace))
        (workspace / ".venv/.tools-sync").write_text(state_digest(workspace))


def test_an_environment_whose_interpreter_is_gone_is_not_current(workspace: Path) -> None:
    install_stamp(workspace)
    (workspace / ".venv/bin/python").unlink()
    assert not is_current(workspace / ".venv", state_digest(workspace))


def test_a_moved_repository_is_not_current(workspace: Path) -> None:
    digest = state_digest(workspace)
    moved = workspace.rename(workspace.with_name(workspace.name + "-moved"))
    assert state_digest(moved) != digest


def test_the_commands_start_on_an_interpreter_with_nothing_installed() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import tools.cli; tools.cli.main(['-h'])"
    )
    # -I and -S: no environment variables, no site-packages.
    command = [base_interpreter(), "-I", "-S", "-c", program, REPOSITORY_ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sync" in done.stdout


def test_syncing_without_a_lock_says_which_command_makes_one(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync"], root=workspace) == 1
    assert "run `python3 -m tools lock`" in capsys.readouterr().err


def test_syncing_refuses_a_lock_that_names_a_host_before_it_installs_anything(
    workspace: Path,
) -> None:
    (workspace / "uv.lock").write_text('x = "https://index.example/simple"\n')
    with pytest.raises(ToolError, match="line 1 names a host"):
        sync(workspace)
    assert not (workspace / ".venv").exists()


def test_the_uv_version_must_be_pinned_exactly(workspace: Path) -> None:
    assert pinned_version(workspace) == "1.2.3"
    root = workspace / "pyproject.toml"
    root.write_text(root.read_text().replace("==1.2.3", ">=1.2"))
    with pytest.raises(ToolError, match="exact"):
        pinned_version(workspace)


def test_uv_sees_the_wheelhouse_alone_whatever_the_caller_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://index.example/simple")
    monkeypatch.setenv("VIRTUAL_ENV", "elsewhere")
    env = offline_environment()
    assert env["UV_NO_INDEX"] == "1"
    assert env["UV_FIND_LINKS"] == "wheelhouse"
    assert env["UV_PYTHON_DOWNLOADS"] == "never"
    assert not env.keys() & {"UV_DEFAULT_INDEX", "VIRTUAL_ENV"}
