"""One kill at every moment of a turn, for every effect: what ran how often, and what is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from crashing_agent import (
    EFFECTS,
    MODEL_AFTER,
    MODEL_BEFORE,
    RESUMED_AFTER,
    RESUMED_BEFORE,
    SINGLE_ATTEMPT,
    TOOL_AFTER,
    TOOL_BEFORE,
    TOOL_INSIDE,
    UNKNOWN,
    script_of,
)
from crashing_stack import CrashingStack, tool_texts

from dex_agents import AgentSnapshot
from dex_agents.testing import EXECUTE_COMPLETED_EVENT, StartProcess, wait_until


@dataclass(frozen=True)
class Moment:
    """Where the worker is killed, and what is then counted.

    Attributes:
        place: The place at which everything of the session stands still.
        repeated: Attempts and effects of a call that may run again.
        single: Attempts and effects of a call that may run once.
        model_calls: Model calls of the turn, of which two are needed.
    """

    place: str
    repeated: tuple[int, int]
    single: tuple[int, int]
    model_calls: int

    @property
    def is_lost(self) -> bool:
        """Whether a call was running, so that nobody can know if a single attempt took effect."""
        return self.place.startswith("tool.")


MOMENTS = (
    Moment(MODEL_BEFORE, (1, 1), (1, 1), 3),
    Moment(MODEL_AFTER, (1, 1), (1, 1), 3),
    Moment(TOOL_BEFORE, (2, 1), (1, 0), 2),
    Moment(TOOL_INSIDE, (2, 1), (1, 0), 2),
    Moment(TOOL_AFTER, (2, 2), (1, 1), 2),
    Moment(RESUMED_BEFORE, (1, 1), (1, 1), 3),
    Moment(RESUMED_AFTER, (1, 1), (1, 1), 3),
)


@pytest.mark.requirement("CORE-EFFECT-10")
async def test_a_kill_repeats_what_may_be_repeated_and_nothing_else(
    tmp_path: Path, start: StartProcess
) -> None:
    """Each session stands still at another place when the one worker of them all is killed."""
    async with CrashingStack(tmp_path, script_of(*EFFECTS), start) as stack:
        first = await stack.start_worker()
        sessions = stack.sessions()
        for moment in MOMENTS:
            await sessions.start_session(moment.place, "go")
        for moment in MOMENTS:
            running = len(EFFECTS) if moment.is_lost else 1
            await stack.gate(moment.place).wait_until_reached(arrivals=running)
        first.kill()
        for moment in MOMENTS:
            stack.gate(moment.place).release()
        await stack.start_worker()
        for moment in MOMENTS:
            await stack.turn_ended(moment.place, 1)
            await sessions.send_user_message(moment.place, "and now?")
        for moment in MOMENTS:
            snapshot = await stack.turn_ended(moment.place, 2)
            check(stack, moment, snapshot)
            await check_steps(stack, moment)


def check(stack: CrashingStack, moment: Moment, snapshot: AgentSnapshot) -> None:
    """Assert the numbers, keys, records and texts of one session."""
    session_id = moment.place
    attempts = stack.details("attempt", session_id)
    records = stack.details("records", session_id)
    # Every model call that resumed the turn saw the same final records.
    seen = [entry["records"] for entry in records if entry["records"]]
    assert all(other == seen[0] for other in seen)
    texts = tool_texts(snapshot.messages)
    assert len(texts) == len(EFFECTS)
    for number, (tool, text) in enumerate(zip(EFFECTS, texts, strict=True), 1):
        where = f"{tool} of the session killed at {moment.place}"
        call_id = f"c{number}"
        mine = [entry for entry in attempts if entry["tool"] == tool]
        effects = stack.details(tool, session_id)
        expected = moment.single if tool in SINGLE_ATTEMPT else moment.repeated
        assert (len(mine), len(effects)) == expected, where
        assert [entry["attempt"] for entry in mine] == list(range(1, len(mine) + 1)), where
        keys = {entry["idempotency_key"] for entry in (*mine, *effects)}
        assert keys == {f"{session_id}/turn-1/{call_id}"}, where
        name, status, output, error = seen[0][call_id]
        assert name == tool
        if moment.is_lost and tool in SINGLE_ATTEMPT:
            assert (status, output) == ("outcome_unknown", None), where
            assert error, where
            assert text.startswith(UNKNOWN), where
            assert error in text, where
        else:
            assert (status, output, error) == ("succeeded", f"{tool} {number}", None), where
            assert text == f"{tool} {number}", where
    assert len(records) == moment.model_calls, moment.place
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error is None
    assert snapshot.messages[-1].text == "end 2"
    # The second turn, after the kill, runs everything once.
    assert len(stack.details("attempt", session_id, "turn-2")) == len(EFFECTS)
    assert snapshot.usage.model_calls == 4


async def check_steps(stack: CrashingStack, moment: Moment) -> None:
    """Assert that each call ended in one Step: its own, or the record of its loss."""
    steps = [
        entry.step_type
        for entry in await stack.read_step_history(moment.place)
        if entry.event_type == EXECUTE_COMPLETED_EVENT
    ]
    lost = len(SINGLE_ATTEMPT) if moment.is_lost else 0
    assert steps.count("RecordToolOutcomeUnknown") == lost
    assert steps.count("CallSingleAttemptTool") == 2 * len(SINGLE_ATTEMPT) - lost
    assert steps.count("CallTool") == 2 * (len(EFFECTS) - len(SINGLE_ATTEMPT))
    assert steps.count("RecordToolFailure") == 0


@pytest.mark.crash
@pytest.mark.requirement("CORE-EFFECT-10", "CORE-TOOL-17")
async def test_calls_that_wait_for_a_free_slot_when_their_worker_is_killed_run_or_are_unknown(
    tmp_path: Path,
    start: StartProcess,
) -> None:
    """A worker with one free slot holds one call at its gate; the others have not begun."""
    one_slot = {"CRASHING_SLOTS": "2"}
    async with CrashingStack(tmp_path, script_of("look", *EFFECTS), start) as stack:
        first = await stack.start_worker(one_slot)
        await stack.sessions().start_session(TOOL_INSIDE, "go")
        gate = stack.gate(TOOL_INSIDE)
        await gate.wait_until_reached()
        first.kill()
        (held,) = stack.details("attempt", TOOL_INSIDE)
        gate.release()
        await stack.start_worker()
        texts = tool_texts((await stack.turn_ended(TOOL_INSIDE, 1)).messages)

        for number, tool in enumerate(("look", *EFFECTS), 1):
            call_id = f"c{number}"
            effects = [
                entry
                for entry in stack.details(tool, TOOL_INSIDE)
                if entry["tool_call_id"] == call_id
            ]
            if tool in SINGLE_ATTEMPT and (call_id == held["tool_call_id"] or not effects):
                # It had been handed out, or was on its way: not run, and not told as if it had.
                assert texts[number - 1].startswith(UNKNOWN)
                assert effects == []
            else:
                assert texts[number - 1] == f"{tool} {number}"
                assert len(effects) == 1


@pytest.mark.requirement("CORE-TOOL-17")
async def test_a_single_attempt_whose_worker_dies_before_any_output_never_runs_twice(
    tmp_path: Path,
    start: StartProcess,
) -> None:
    """The worker dies while it decodes the record: the engine has seen nothing of the attempt."""
    async with CrashingStack(tmp_path, script_of("pay", turns=2), start) as stack:
        doomed = await stack.start_worker({"CRASHING_ON_DECODE": "1"})
        await stack.sessions().start_session("s", "go")
        await wait_until("the death of the worker", lambda: not doomed.is_running)
        await stack.start_worker()
        snapshot = await stack.turn_ended("s", 1)
        (text,) = tool_texts(snapshot.messages)
        # An engine may offer it again, since nothing has run, or give it up as unknown.
        ran = len(stack.details("pay", "s"))
        assert ran == (0 if text.startswith(UNKNOWN) else 1)
        assert [a["attempt"] for a in stack.details("attempt", "s")] == [1] * ran
        await asyncio.gather(
            stack.sessions().send_user_message("s", "again"), stack.turn_ended("s", 2)
        )
        assert len(stack.details("pay", "s", "turn-2")) == 1
