"""Many sessions at work when the engine, the worker, or both are killed.

32 sessions and every victim with a `DEX_CRASH_KILLS` of 100 or more, else 8 and the engine alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from crash_session import UNKNOWN, Crashing, crashing_session, script_with_gates

from dex_agents.testing import StartProcess, wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.crash]

IN_FULL = int(os.environ.get("DEX_CRASH_KILLS", "20")) >= 100
SESSIONS = 32 if IN_FULL else 8
VICTIMS = ("engine", "worker", "both") if IN_FULL else ("engine",)


async def strike(crashing: Crashing, victims: str) -> None:
    """Kill the victims at the same moment, and start again only those."""
    if victims != "worker":
        crashing.stack.engine.kill()
    if victims != "engine":
        crashing.worker.kill()
    if victims != "worker":
        await crashing.restart_engine()
    if victims != "engine":
        await crashing.stack.start_worker()


@pytest.mark.parametrize("victims", VICTIMS)
async def test_busy_sessions_all_finish_with_every_effect_counted_right(
    tmp_path: Path, start: StartProcess, victims: str
) -> None:
    # A refund stays in its tool, after the effect, until the kill: the others are anywhere.
    script = script_with_gates(refund__gate_after="in-refund")
    async with crashing_session(tmp_path, start, script) as crashing:
        busy = [
            # Many sessions that are all looked at often would be busy with that.
            replace(crashing, session_id=f"s-{number}", interval=SESSIONS / 32)
            for number in range(SESSIONS)
        ]
        gate = crashing.gate("in-refund")
        async with asyncio.TaskGroup() as driving:
            ends = [driving.create_task(each.drive()) for each in busy]
            refunding = await wait_until(
                "refunds to be running", lambda: gate.arrivals[SESSIONS // 4 :], timeout=120
            )
            assert refunding
            unfinished = [end for end in ends if not end.done()]
            workers = crashing.stack.workers
            await strike(crashing, victims)
            struck = time.monotonic()
            gate.release()
        took = time.monotonic() - struck

        assert len(unfinished) == SESSIONS
        if victims == "engine":
            assert crashing.stack.workers == workers, "the worker had to be started again"
            assert crashing.worker.is_running
        unknown = 0
        for each, end in zip(busy, ends, strict=True):
            await each.check(end.result(), may_be_unknown=True)
            page = await each.sessions.list_agent_messages(each.session_id)
            unknown += any(message.text.startswith(UNKNOWN) for message in page.messages)
        assert unknown > SESSIONS // 4, "a refund that was running is not reported as unknown"
        print(
            f"\n{SESSIONS} sessions, {victims} killed: all finished {took:.1f} s later,"
            f" {crashing.log.count('refund')} refunds, {unknown} unknown"
        )
