"""Workers killed at an exact place: what runs again, and what does not."""

from __future__ import annotations

from pathlib import Path

from openai_run import DONE, FIND, NOTE_AND_REFUND, TO_BILLING, worker_processes

from dex_agents import ToolCallStatus
from dex_agents.testing import FileGate, StartProcess


async def test_case_17_a_killed_read_runs_again_and_its_result_is_used(
    tmp_path: Path, start: StartProcess
) -> None:
    async with worker_processes(tmp_path, start, {"replies": [FIND, DONE]}) as run:
        gate = run.gate("find_order")
        worker = await run.start_worker()
        await run.start("Where is my order?")
        assert await gate.wait_until_reached() == worker.pid
        worker.kill()
        gate.release()
        await run.start_worker()
        assert (await run.turns_ended(1)).messages[-1].text == "All done."
        runs = run.tools.entries("find_order")
        assert [call.details["attempt"] for call in runs] == [1, 2]
        assert len({call.details["key"] for call in runs}) == 1
        assert len(run.model.requests) == 2, "no model call is repeated"
        assert list(run.outputs().values()) == ["customer 3 has order 7"]


async def test_case_17_a_killed_write_ran_once_and_its_outcome_is_unknown(
    tmp_path: Path, start: StartProcess
) -> None:
    async with worker_processes(
        tmp_path, start, {"replies": [TO_BILLING, NOTE_AND_REFUND, DONE]}
    ) as run:
        gate = run.gate("refund")
        worker = await run.start_worker()
        await run.start("Refund order 7.")
        await run.answer(approved=True)
        await gate.wait_until_reached()
        worker.kill()
        gate.release()
        await run.start_worker()
        await run.turns_ended(1)
        assert run.tools.count("refund") == 1
        assert run.outputs()["note"] == "noted on 7"
        assert "not known" in run.outputs()["refund"]


async def test_case_17_a_kill_while_the_model_streams_costs_one_more_call(
    tmp_path: Path, start: StartProcess
) -> None:
    held = {"text": "A long answer.", "faults": [{"hold": "stream", "after": 3}]}
    async with worker_processes(tmp_path, start, {"replies": [held]}) as run:
        worker = await run.start_worker()
        await run.start("Tell me.")
        await FileGate(tmp_path, "stream").wait_until_reached()
        worker.kill()
        await run.start_worker()
        assert (await run.turns_ended(1)).messages[-1].text == "A long answer."
        assert len(run.model.requests) == 2


async def test_case_34_an_approval_outlives_every_worker(
    tmp_path: Path, start: StartProcess
) -> None:
    turns = (
        {"replies": [TO_BILLING, NOTE_AND_REFUND, DONE]},
        {"replies": [{"text": "Still here."}]},
    )
    async with worker_processes(tmp_path, start, *turns) as run:
        worker = await run.start_worker()
        await run.start("Refund order 7.")
        waiting = await run.wait(
            lambda s: (
                s
                if s.pending_interrupts
                and any(call.status is ToolCallStatus.SUCCEEDED for call in s.tool_calls)
                else None
            ),
            "the note taken and the refund waiting",
        )
        [interrupt] = waiting.pending_interrupts
        assert (interrupt.tool_name, interrupt.arguments) == ("refund", '{"order": "7"}')
        worker.kill()
        await run.start_worker()
        await run.answer(approved=False, rejection_message="Not this one.")
        await run.turns_ended(1)
        assert run.tools.count("refund") == 0
        assert (run.outputs()["note"], run.outputs()["refund"]) == ("noted on 7", "Not this one.")
        await run.send("Are you there?")
        assert (await run.turns_ended(2)).messages[-1].text == "Still here."
