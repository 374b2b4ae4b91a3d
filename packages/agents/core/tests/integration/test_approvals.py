"""Approvals on a real engine: answers, expiry, races and restarts."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from session_harness import (
    FunctionRunner,
    answer,
    ask,
    outcomes,
    running_session,
    tool_call,
)

from dex_agents import (
    AgentEventType,
    AgentSessionOptions,
    AgentTurnContext,
    AgentTurnOutcome,
    ToolCallStatus,
    ToolEffect,
    TurnFailedError,
)
from dex_agents.testing import EXECUTE_COMPLETED_EVENT, read_step_history

WRITE = ToolEffect.NON_IDEMPOTENT_WRITE


def refunds(*calls: object) -> FunctionRunner:
    """Make a runner that asks for these calls and then answers with what the model reads."""

    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.is_resuming:
            return answer(" | ".join(outcomes(turn)))
        return ask(*calls)  # pyright: ignore[reportArgumentType] - deferred calls

    return FunctionRunner(model, lambda call: f"refunded {call.tool_call.arguments}")


@pytest.mark.requirement("CORE-APPROVAL-01", "CORE-APPROVAL-12")
async def test_an_approved_call_runs_once_and_the_answer_counts_once(tmp_path: Path) -> None:
    runner = refunds(tool_call("c1", "refund", WRITE, "7"))
    async with running_session(tmp_path, runner) as session:
        await session.start("refund 7")
        (interrupt,) = await session.interrupts()
        assert interrupt.interrupt_id == "turn-1~c1"
        assert (interrupt.tool_name, interrupt.arguments) == ("refund", "7")
        assert interrupt.effect is WRITE
        assert runner.executions == []
        answers = [
            session.resolve("c1", True),
            *(
                session.client.resolve_interrupt(
                    session.session_id, interrupt.interrupt_id, approved=True
                )
                for _ in range(19)
            ),
        ]
        assert sorted(await asyncio.gather(*answers)) == [False] * 19 + [True]
        snapshot = await session.turn_ended(1)
        events = await session.events_until(AgentEventType.TURN_COMPLETED, "turn-1")
    assert len(runner.executions) == 1
    assert runner.executions[0].tool_call.status is ToolCallStatus.APPROVED
    assert snapshot.messages[-1].text == "refunded 7"
    assert snapshot.pending_interrupts == ()
    kinds = [e.type.value for e in events]
    assert kinds.index("interrupt_raised") < kinds.index("interrupt_resolved")
    resolved = next(e for e in events if e.type is AgentEventType.INTERRUPT_RESOLVED)
    assert resolved.payload == {
        "interrupt_id": "turn-1~c1",
        "approved": True,
        "rejection_message": None,
    }


@pytest.mark.requirement("CORE-APPROVAL-05")
async def test_a_rejected_call_never_runs_and_the_model_reads_why(tmp_path: Path) -> None:
    runner = refunds(tool_call("c1", "refund", WRITE, "7"))
    async with running_session(tmp_path, runner) as session:
        await session.start("refund 7")
        assert await session.resolve("c1", False, "too expensive")
        snapshot = await session.turn_ended(1)
        events = await session.events_until(AgentEventType.TURN_COMPLETED, "turn-1")
    assert runner.executions == []
    record = runner.turns[-1].tool_calls["c1"]
    assert record.status is ToolCallStatus.REJECTED
    assert record.rejection_message == "too expensive"
    assert "too expensive" in snapshot.messages[-1].text
    finished = [e for e in events if e.type is AgentEventType.TOOL_CALL_FINISHED]
    assert [e.payload["status"] for e in finished] == ["rejected"]


@pytest.mark.requirement("CORE-APPROVAL-08")
async def test_a_rejection_message_is_dropped_on_approval(tmp_path: Path) -> None:
    runner = refunds(tool_call("c1", "refund", WRITE, "7"))
    async with running_session(tmp_path, runner) as session:
        await session.start("refund 7")
        assert await session.resolve("c1", True, "ignored")
        await session.turn_ended(1)
    assert runner.turns[-1].tool_calls["c1"].rejection_message is None


@pytest.mark.requirement("CORE-APPROVAL-06")
async def test_an_unanswered_approval_expires_as_a_rejection(tmp_path: Path) -> None:
    runner = refunds(tool_call("c1", "refund", WRITE, "7"))
    options = AgentSessionOptions(interrupt_deadline=timedelta(milliseconds=1500))
    async with running_session(tmp_path, runner, options) as session:
        await session.start("refund 7")
        (interrupt,) = await session.interrupts()
        assert interrupt.deadline == interrupt.raised_at + timedelta(milliseconds=1500)
        snapshot = await session.turn_ended(1)
        assert not await session.client.resolve_interrupt(
            session.session_id, interrupt.interrupt_id, approved=True
        )
    assert runner.executions == []
    assert snapshot.pending_interrupts == ()
    assert runner.turns[-1].tool_calls["c1"].status is ToolCallStatus.REJECTED


@pytest.mark.requirement("CORE-APPROVAL-10", "CORE-RPC-20")
async def test_a_mixed_batch_runs_what_it_may_and_waits_for_the_rest(tmp_path: Path) -> None:
    runner = refunds(
        tool_call("c1", "search", ToolEffect.READ, "1"),
        tool_call("c2", "refund", WRITE, "2"),
        tool_call("c3", "refund", WRITE, "3"),
        tool_call("c4", "note", ToolEffect.IDEMPOTENT_WRITE, "4", requires_approval=True),
    )
    async with running_session(tmp_path, runner) as session:
        await session.start("go")
        await session.interrupts(3)
        await session.until(
            "the free call to finish",
            lambda s: any(c.tool_call_id == "c1" and c.status.is_final for c in s.tool_calls),
        )
        listed = await session.client.list_sessions(waiting_for_approval=True)
        assert [(e.session_id, e.pending_approval_count) for e in listed.sessions] == [
            ("session-1", 3)
        ]
        assert await session.resolve("c3", True)
        await session.until(
            "the approved call to finish",
            lambda s: any(c.tool_call_id == "c3" and c.status.is_final for c in s.tool_calls),
        )
        assert len(await session.interrupts(2)) == 2
        assert await session.resolve("c2", False, "no")
        assert await session.resolve("c4", True)
        snapshot = await session.turn_ended(1)
        listed = await session.client.list_sessions(waiting_for_approval=True)
        assert listed.sessions == ()
        history = await read_step_history(session.app.server_address, session.session_id)
    texts = snapshot.messages[-1].text.split(" | ")
    assert [texts[0], texts[2], texts[3]] == ["refunded 1", "refunded 3", "refunded 4"]
    executed = [e.step_type for e in history if e.event_type == EXECUTE_COMPLETED_EVENT]
    assert executed.count("CallTool") == 2
    assert executed.count("CallSingleAttemptTool") == 1
    assert executed.count("AwaitToolApproval") == 3


@pytest.mark.requirement("CORE-APPROVAL-11")
async def test_an_approval_waits_over_a_restart_of_everything(tmp_path: Path) -> None:
    calls = (tool_call("c1", "refund", WRITE, "1"), tool_call("c2", "refund", WRITE, "2"))
    async with running_session(tmp_path, refunds(*calls)) as session:
        await session.start("go")
        await session.interrupts(2)
    runner = refunds(*calls)
    async with running_session(tmp_path, runner) as session:
        pending = await session.interrupts(2)
        assert [(i.tool_call_id, i.arguments) for i in pending] == [("c1", "1"), ("c2", "2")]
        assert await session.resolve("c2", True)
        assert await session.resolve("c1", True)
        snapshot = await session.turn_ended(1)
        await session.send("next")
        await session.interrupts(2)
    assert snapshot.messages[-1].text == "refunded 1 | refunded 2"
    assert sorted(e.idempotency_key for e in runner.executions) == [
        "session-1/turn-1/c1",
        "session-1/turn-1/c2",
    ]


@pytest.mark.requirement("CORE-APPROVAL-09")
async def test_an_answer_of_an_earlier_turn_never_reaches_a_later_call_with_that_id(
    tmp_path: Path,
) -> None:
    runner = refunds(tool_call("c1", "refund", WRITE, "7"))
    async with running_session(tmp_path, runner) as session:
        await session.start("one")
        (first,) = await session.interrupts()
        assert await session.resolve("c1", False)
        await session.turn_ended(1)
        await session.send("two")
        (second,) = await session.interrupts()
        assert second.interrupt_id != first.interrupt_id
        assert not await session.client.resolve_interrupt(
            session.session_id, first.interrupt_id, approved=True
        )
        assert runner.executions == []
        assert await session.resolve("c1", True)
        await session.turn_ended(2)
    assert len(runner.executions) == 1


@pytest.mark.requirement("CORE-FAIL-10")
async def test_a_turn_that_fails_after_an_approval_leaves_no_question_and_a_note(
    tmp_path: Path,
) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.turn_id == "turn-2":
            return answer(turn.messages[1].text)
        if turn.is_resuming:
            raise TurnFailedError("the model is gone")
        return ask(tool_call("c1", "refund", WRITE, "7"))

    runner = FunctionRunner(model, lambda call: "refunded 7")
    async with running_session(tmp_path, runner) as session:
        await session.start("refund 7")
        assert await session.resolve("c1", True)
        snapshot = await session.turn_ended(1)
        assert snapshot.pending_interrupts == ()
        await session.send("and now?")
        snapshot = await session.turn_ended(2)
    assert len(runner.executions) == 1
    assert "refund 7 -> succeeded: refunded 7" in snapshot.messages[-1].text
