from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dex_agents.testing import FileGate, InvocationLog, WaitTimeoutError


async def test_a_gate_holds_one_side_until_the_other_opens_it(tmp_path: Path) -> None:
    inside = FileGate(tmp_path / "gates", "middle")
    outside = FileGate(tmp_path / "gates", "middle")

    async def work() -> None:
        inside.mark_reached()
        await inside.wait_for_release()

    working = asyncio.create_task(work())
    assert await outside.wait_until_reached() == os.getpid()
    assert outside.is_reached
    assert not working.done()
    outside.release()
    await working


async def test_every_arrival_is_known_by_its_process(tmp_path: Path) -> None:
    gate = FileGate(tmp_path, "g")
    program = f"from dex_agents.testing import FileGate; FileGate({str(tmp_path)!r}, 'g')"
    gate.mark_reached()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", f"{program}.mark_reached()")

    assert await gate.wait_until_reached(arrivals=2) == child.pid
    assert await child.wait() == 0
    assert gate.arrivals == (os.getpid(), child.pid)


async def test_a_gate_nobody_opens_ends_by_itself(tmp_path: Path) -> None:
    gate = FileGate(tmp_path, "g")

    with pytest.raises(WaitTimeoutError, match="the release of gate 'g'"):
        await gate.wait_for_release(timeout=0.05)
    with pytest.raises(TimeoutError, match="was not released within"):
        await asyncio.to_thread(gate.block_until_released, 0.05)
    with pytest.raises(WaitTimeoutError, match="arrival 1 at gate 'g'"):
        await gate.wait_until_reached(timeout=0.05)


@pytest.mark.parametrize("name", ["", "a/b", "..\\x", "a b"])
def test_a_gate_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="may hold letters"):
        FileGate(tmp_path, name)


def test_a_log_counts_calls_by_name_and_keeps_their_facts(tmp_path: Path) -> None:
    log = InvocationLog(tmp_path / "new" / "calls.jsonl")
    assert log.entries() == ()

    log.record("refund", order="7")
    log.record("look")
    log.record("refund", order="8")

    assert (log.count(), log.count("refund"), log.count("other")) == (3, 2, 0)
    assert [entry.details for entry in log.entries("refund")] == [{"order": "7"}, {"order": "8"}]
    assert log.entries()[0].process_id == os.getpid()


def test_processes_that_log_at_the_same_time_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    program = (
        "from dex_agents.testing import InvocationLog\n"
        f"log = InvocationLog({str(path)!r})\n"
        "for number in range(200): log.record('call', number=number, text='x' * 500)"
    )

    children = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]

    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    assert InvocationLog(path).count("call") == 600
