"""Kills at the places that matter most, each in a stack of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from crash_session import crashing_session, script_with_gates

from dex_agents.testing import EXECUTE_COMPLETED_EVENT, StartProcess

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("victims", ["worker", "both"])
async def test_a_worker_killed_between_effect_and_result_leaves_one_refund_and_says_unknown(
    tmp_path: Path, start: StartProcess, victims: str
) -> None:
    script = script_with_gates(refund__gate_after="in-refund")
    async with crashing_session(tmp_path, start, script) as crashing:
        driving = asyncio.create_task(crashing.drive())
        gate = crashing.gate("in-refund")
        assert await gate.wait_until_reached() == crashing.worker.pid
        if victims == "both":
            crashing.stack.engine.kill()
        crashing.worker.kill()
        if victims == "both":
            await crashing.restart_engine()
        await crashing.stack.start_worker()
        snapshot = await driving
        await crashing.check(snapshot, may_be_unknown=True)

        results = [message.text for message in snapshot.messages if message.role == "tool"]
        assert results[2].startswith("It is not known whether")
        assert crashing.log.count("refund") == 1
        assert len(gate.arrivals) == 1


async def test_a_worker_killed_in_an_idempotent_write_repeats_it_with_the_same_key(
    tmp_path: Path, start: StartProcess
) -> None:
    script = script_with_gates(open_case__gate_after="in-case")
    async with crashing_session(tmp_path, start, script) as crashing:
        driving = asyncio.create_task(crashing.drive())
        gate = crashing.gate("in-case")
        await gate.wait_until_reached()
        await crashing.replace_worker()
        gate.release()
        await crashing.check(await driving, may_be_unknown=False)

        calls = crashing.log.entries("open_case")
        assert [call.details["attempt"] for call in calls] == [1, 2]
        assert len({call.details["idempotency_key"] for call in calls}) == 1


@pytest.mark.parametrize("reply", [1, 2, 3, 4])
async def test_a_worker_killed_in_a_model_call_repeats_only_that_call(
    tmp_path: Path, start: StartProcess, reply: int
) -> None:
    script = script_with_gates(**{f"reply_{reply}": "in-model"})
    async with crashing_session(tmp_path, start, script) as crashing:
        driving = asyncio.create_task(crashing.drive())
        gate = crashing.gate("in-model")
        await gate.wait_until_reached()
        await crashing.replace_worker()
        gate.release()
        await crashing.check(await driving, may_be_unknown=False)

        assert len(gate.arrivals) == 2
        history = await crashing.stack.read_step_history("s")
        attempts = [
            entry.final_attempt
            for entry in history
            if (entry.step_type, entry.event_type) == ("RunModel", EXECUTE_COMPLETED_EVENT)
        ]
        assert sorted(attempts)[-2:] == [1, 2]


@pytest.mark.parametrize("victims", ["engine", "worker", "both"])
async def test_a_kill_while_an_approval_waits_changes_nothing(
    tmp_path: Path, start: StartProcess, victims: str
) -> None:
    async with crashing_session(tmp_path, start) as crashing:
        await crashing.sessions.start_session("s", "refund order 7", message_id="s-1")
        before = await crashing.wait_for_interrupt()
        if victims != "worker":
            await crashing.restart_engine()
        if victims != "engine":
            await crashing.replace_worker()
        assert await crashing.wait_for_interrupt() == before
        await crashing.check(await crashing.drive(), may_be_unknown=False)

        assert crashing.log.count("run_model_step") == 4
