"""The demo, run as a user runs it: as a program, without a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dex_agents_testkit.model_server import load_model_script, read_recorded_requests

HERE = Path(__file__).resolve().parent
# Far more than it needs, since a test may share the machine with many others.
LIMIT = "170"

pytestmark = pytest.mark.timeout(400)


def start_demo(*arguments: str, data_dir: Path) -> subprocess.Popen[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")
    }
    command = [sys.executable, "-u", str(HERE / "demo.py"), "--data-dir", str(data_dir)]
    return subprocess.Popen(
        [*command, "--limit", LIMIT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def run_demo(*arguments: str, data_dir: Path) -> subprocess.CompletedProcess[str]:
    demo = start_demo(*arguments, data_dir=data_dir)
    stdout, stderr = demo.communicate()
    return subprocess.CompletedProcess(demo.args, demo.returncode, stdout, stderr)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_killed_worker_costs_one_attempt_and_the_session_is_remembered(tmp_path: Path) -> None:
    first = run_demo("--session", "s1", data_dir=tmp_path)

    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stderr == ""
    assert "Done: 48.5 euros for a blue teapot are on their way to you" in first.stdout
    assert re.search(r"CallTool +look_up_order +2 +← the first one was killed", first.stdout)
    # Only the command to copy may be longer than a terminal is wide.
    wide = [line for line in first.stdout.splitlines() if len(line) > 80]
    assert all(line.startswith("    make demo") for line in wide)
    refunds = lines_of(tmp_path / "shop" / "refunds.jsonl")
    assert [refund["order_id"] for refund in refunds] == ["7"]
    killed = re.search(r"killed with SIGKILL in the middle process (\d+)", first.stdout)
    look_ups = lines_of(tmp_path / "shop" / "look-ups.jsonl")
    assert killed is not None
    assert [note["phase"] for note in look_ups] == ["started", "started", "finished"]
    assert look_ups[0]["pid"] == int(killed[1]) != look_ups[2]["pid"]

    requests = len(read_recorded_requests(tmp_path / "model-requests.jsonl"))
    second = run_demo("--session", "s1", data_dir=tmp_path)

    assert second.returncode == 0, second.stdout + second.stderr
    assert "It was order 7, a blue teapot. Its status now: refunded." in second.stdout
    sent = read_recorded_requests(tmp_path / "model-requests.jsonl")[requests].conversation
    assert sent.user_texts == (
        "My order 7 arrived broken. I want my money back.",
        "Which order was that again, and is it settled?",
    )
    assert lines_of(tmp_path / "shop" / "refunds.jsonl") == refunds


def test_a_demo_that_is_killed_itself_goes_on_in_its_next_run(tmp_path: Path) -> None:
    demo = start_demo("--session", "s1", data_dir=tmp_path)
    assert demo.stdout is not None
    shown = ""
    while "another worker started" not in shown:
        line = demo.stdout.readline()
        assert line, shown
        shown += line
    started = [int(pid) for pid in re.findall(r"(?:engine|model|started) +process (\d+)", shown)]
    assert len(started) == 3
    demo.kill()
    demo.communicate()
    for pid in started:
        wait_until_gone(pid)

    again = run_demo("--session", "s1", data_dir=tmp_path)

    assert again.returncode == 0, again.stdout + again.stderr
    assert "the turn that was interrupted goes on" in again.stdout
    assert len(lines_of(tmp_path / "shop" / "refunds.jsonl")) == 1


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")


def test_another_script_changes_what_the_agents_say_and_do(tmp_path: Path) -> None:
    script = json.loads((HERE / "model_script.json").read_text())
    for rule in script["rules"]:
        if rule["name"] == "refund done":
            rule["reply"]["text"] = "The teapot is history, ${tool:refund_order.refund_id} is paid."
    path = tmp_path / "other.json"
    path.write_text(json.dumps(script))

    done = run_demo("--no-kill", "--model-script", str(path), data_dir=tmp_path / "data")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "The teapot is history, refund-1 is paid." in done.stdout


def test_a_script_without_a_refund_is_not_called_a_success(tmp_path: Path) -> None:
    path = tmp_path / "silent.json"
    path.write_text('{"rules": [{"reply": {"text": "No comment."}}]}')

    done = run_demo("--no-kill", "--model-script", str(path), data_dir=tmp_path / "data")

    assert done.returncode == 1
    assert "No comment." in done.stdout
    assert "the model never asked for a refund" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gpt-5"], "--model gpt-5 asks for a real model, but OPENAI_API_KEY is not"),
        (["--model-script", "missing.json"], "missing.json: cannot be read"),
        (["--model", "gpt-5", "--model-script", "x.json"], "--model-script has no use"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run_demo(*arguments, data_dir=tmp_path / "data")

    assert done.returncode == 2
    assert message in done.stdout
    assert not (tmp_path / "data").exists()


def test_a_data_folder_that_holds_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "engine" / "dex.sqlite3"
    file.parent.mkdir()
    file.write_text("a shopping list")

    done = run_demo(data_dir=tmp_path)

    assert done.returncode == 2
    assert "dex.sqlite3" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert file.read_text() == "a shopping list"


def test_the_script_of_the_demo_is_sound() -> None:
    assert len(load_model_script(HERE / "model_script.json").rules) == 10
