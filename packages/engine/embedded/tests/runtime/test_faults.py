"""The form in which a test asks for a crash."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dex_embedded._runtime.faults import Faults, parse_faults


def test_places_with_and_without_a_type_are_read() -> None:
    assert parse_faults("commit.before:2, commit.after:CallTool:1") == {
        "commit.before": 2,
        "commit.after:CallTool": 1,
    }


@pytest.mark.parametrize("text", ["commit.before", "commit.before:0", "nowhere:1", ":1"])
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="fault"):
        parse_faults(text)


def test_nothing_happens_unless_asked_for() -> None:
    faults = Faults.from_environment()
    assert not faults.enabled
    faults.reach("commit.before", "CallTool")


def test_the_log_says_what_was_reached_with_how_many_tasks_out_and_what_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    faults = Faults({"commit.before": 2}, str(tmp_path / "log"))
    faults.tasks_out = lambda: 3
    faults.reach("commit.before", "CallTool")
    faults.reach("disk.after")
    assert not killed
    faults.reach("commit.before", "RunModel")
    assert killed == [(os.getpid(), signal.SIGKILL)]
    assert (tmp_path / "log").read_text().splitlines() == [
        "commit.before:CallTool 3",
        "disk.after 3",
        "commit.before:RunModel 3 killed",
    ]


def test_a_fault_named_while_the_engine_runs_strikes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: struck.append((pid, number)))
    path = tmp_path / "fault"
    faults = Faults(fault_path=str(path))
    faults.reach("commit.before", "CallTool")
    path.write_text("commit.before:CallTool:2:stop")
    for subject in ("CallTool", "RunModel", "CallTool", "CallTool", "CallTool"):
        faults.reach("commit.before", subject)
    assert struck == [(os.getpid(), signal.SIGSTOP)]
    assert [found.name for found in tmp_path.iterdir()] == ["fault.due"]

    path.write_text("commit.before:1")
    faults.reach("commit.before", "RunModel")
    assert struck[1:] == [(os.getpid(), signal.SIGKILL)]
