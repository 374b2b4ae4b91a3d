from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dex import _server_protocol
from release_server import write_dexcli

from tools.cli import main
from tools.engine import process as engine_process
from tools.engine.process import dev_command, running
from tools.engine.protocol import HIGHEST, LOWEST, ServerInfo, ask_server
from tools.engine.resolve import Choice
from tools.errors import ToolError
from tools.workspace import REPOSITORY_ROOT

EMBEDDED = REPOSITORY_ROOT / ".venv/bin/dex-embedded"
FLAGS = ["--dex-port", "--open", "--engine", "--sqlite-db-filename"]


def choice_of(program: Path | None) -> Choice:
    return Choice(program, "1.2.3", "the test says so", ())


def test_a_started_engine_answers_and_is_gone_afterwards(tmp_path: Path) -> None:
    program = write_dexcli(tmp_path / "bin", flags=FLAGS)
    with running(choice_of(program), EMBEDDED, tmp_path / "data") as engine:
        assert ask_server(engine.address) == ServerInfo("9.9.9", 1, 3)
        assert not engine.ended()
    assert engine.ended()
    seen = json.loads((tmp_path / "bin/seen.json").read_text())
    assert seen["arguments"] == [
        "dev",
        "--open=false",
        "--engine=zd",
        f"--sqlite-db-filename={tmp_path}/data/dex.sqlite.db",
    ]
    assert seen["home"] == str(tmp_path / "data")


def test_only_options_that_the_program_lists_are_passed(tmp_path: Path) -> None:
    program = tmp_path / "dexcli"
    assert dev_command(program, frozenset({"--other"}), tmp_path, None) == [str(program), "dev"]
    assert dev_command(program, frozenset({"--dex-port"}), tmp_path, 8801) == [
        str(program),
        "dev",
        "--dex-port=8801",
    ]
    with pytest.raises(ToolError, match="takes no port"):
        dev_command(program, frozenset({"--other"}), tmp_path, 8801)


def test_an_engine_that_ends_early_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    program = write_dexcli(tmp_path, flags=FLAGS, fails="temporal is not installed")
    with (
        pytest.raises(
            ToolError, match=r"code 3 before it was ready:[^$]*temporal is not installed"
        ),
        running(choice_of(program), EMBEDDED),
    ):
        pytest.fail("it must not get ready")


def test_an_engine_that_never_gets_ready_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "dexcli"
    program.write_text("#!/bin/sh\n[ \"$2\" = --help ] && echo ' --open' && exit\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(engine_process, "_READY_SECONDS", 0.5)
    with pytest.raises(ToolError, match="was not ready"), running(choice_of(program), EMBEDDED):
        pytest.fail("it must not get ready")


@pytest.mark.parametrize(
    ("lowest", "current", "problem"),
    [
        (1, 3, None),
        (3, 7, None),
        (1, 1, None),
        (4, 7, "an older"),
        (0, 3, "no valid protocol"),
        (3, 2, "no valid protocol"),
    ],
)
def test_protocol_intervals_have_to_overlap(lowest: int, current: int, problem: str | None) -> None:
    found = ServerInfo("9.9.9", lowest, current).problem()
    assert found is None if problem is None else problem in (found or "")


def test_the_interval_is_that_of_the_sdk() -> None:
    assert LOWEST == _server_protocol.MINIMUM_SUPPORTED_SERVER_PROTOCOL_VERSION
    assert HIGHEST == _server_protocol.MAXIMUM_SUPPORTED_SERVER_PROTOCOL_VERSION


def test_a_command_runs_with_the_address_of_a_fresh_engine_and_its_code_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEXCLI", str(write_dexcli(tmp_path, flags=FLAGS)))
    seen = tmp_path / "address"
    program = "import os, sys; open(sys.argv[1], 'w').write(os.environ['DEX_FLOW_SERVICE_ADDRESS'])"
    line = ["engine", "run", "--", sys.executable, "-c", f"{program}; sys.exit(7)", str(seen)]
    assert main(line) == 7
    assert seen.read_text().startswith("127.0.0.1:")


def test_an_engine_of_a_foreign_protocol_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = write_dexcli(tmp_path, flags=FLAGS, protocol=[4, 9])
    monkeypatch.setenv("DEXCLI", str(program))
    assert main(["engine", "run", "--", "true"]) == 1
    assert "speaks protocol 4..9, the SDK 1..3; take an older engine" in capsys.readouterr().err


def test_a_started_engine_prints_one_line_and_ends_on_a_signal(tmp_path: Path) -> None:
    env = {**os.environ, "DEXCLI": str(write_dexcli(tmp_path, flags=FLAGS))}
    line = [sys.executable, "-m", "tools", "engine", "start"]
    with subprocess.Popen(line, cwd=REPOSITORY_ROOT, env=env, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        first = started.stdout.readline().decode()
        assert first.startswith("127.0.0.1:")
        started.send_signal(signal.SIGTERM)
        assert started.stdout.read() == b""
        assert started.wait(60) == 0


def test_the_choice_is_one_line_and_a_reference_can_be_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEX_ENGINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("DEXCLI", raising=False)
    assert main(["engine", "resolve", "--offline"]) == 0
    assert capsys.readouterr().out == "embedded\n"
    assert main(["engine", "resolve", "--offline", "--require-reference"]) == 1
    assert "nothing may be downloaded now" in capsys.readouterr().err
    program = write_dexcli(tmp_path)
    monkeypatch.setenv("DEXCLI", str(program))
    assert main(["engine", "resolve", "--explain"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{program}\n"
    assert "using dexcli 1.2.3: DEXCLI names it" in shown.err
