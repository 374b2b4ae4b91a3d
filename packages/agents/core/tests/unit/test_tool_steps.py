"""What the Steps around a tool call do with what is stored, one at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from session_harness import FunctionRunner
from step_values import ASKED, CALL, INTERRUPT, MODEL, NOW, TOOLS, final, indexed, loaded, worker

from dex_agents import (
    AGENT_INDEX,
    AGENT_STATE,
    PENDING_INTERRUPTS,
    AgentEventType,
    AgentInterruptResolution,
    ToolCallCompleted,
    ToolCallStatus,
    ToolEffect,
)


@pytest.mark.requirement("CORE-TOOL-01")
async def test_a_tool_gets_its_record_and_the_same_key_on_every_attempt() -> None:
    runner = FunctionRunner()
    for attempt in (1, 2, 3):
        await worker(runner).run(
            "CallTool",
            "c1",
            attributes={AGENT_STATE: TOOLS},
            entries=loaded(CALL),
            attempt=attempt,
        )
    assert [e.attempt for e in runner.executions] == [1, 2, 3]
    assert {e.idempotency_key for e in runner.executions} == {"session-1/turn-1/c1"}
    assert all(e.flow_id == "session-1" and e.tool_call == CALL for e in runner.executions)


@pytest.mark.requirement("CORE-TOOL-05", "CORE-EFFECT-03", "CORE-EVENT-06")
@pytest.mark.parametrize(
    ("step", "effect", "status"),
    [
        ("RecordToolFailure", ToolEffect.READ, ToolCallStatus.FAILED),
        ("RecordToolFailure", ToolEffect.IDEMPOTENT_WRITE, ToolCallStatus.OUTCOME_UNKNOWN),
        (
            "RecordToolOutcomeUnknown",
            ToolEffect.NON_IDEMPOTENT_WRITE,
            ToolCallStatus.OUTCOME_UNKNOWN,
        ),
        ("RecordToolOutcomeUnknown", ToolEffect.UNCLASSIFIED, ToolCallStatus.OUTCOME_UNKNOWN),
    ],
)
async def test_a_lost_call_becomes_final_with_the_detail_of_its_loss(
    step: str, effect: ToolEffect, status: ToolCallStatus
) -> None:
    run = await worker().run(
        step,
        "c1",
        attributes={AGENT_STATE: TOOLS},
        entries=loaded(replace(CALL, effect=effect)),
        recovery="worker lost",
    )
    record = run.writes["AgentToolCalls/c1"]
    assert (record.status, record.error) == (status, "worker lost")
    assert run.published == ["ToolCallResults"]
    assert run.next_steps == []
    (event,) = run.events
    assert event.type is AgentEventType.TOOL_CALL_FINISHED
    assert event.payload["status"] == status.value


@pytest.mark.requirement("CORE-STEP-07")
async def test_a_turn_waits_for_as_many_results_as_it_expects() -> None:
    run = await worker().wait_for("ResumeTurn", 3, attributes={AGENT_STATE: TOOLS})
    (condition,) = run.waits.channel_conditions
    assert (condition.channel_name, condition.at_least, condition.at_most) == (
        "ToolCallResults",
        3,
        3,
    )


@pytest.mark.requirement("CORE-STEP-08", "CORE-STEP-20")
async def test_a_turn_waits_again_while_one_of_its_records_is_unfinished() -> None:
    run = await worker().run(
        "ResumeTurn",
        2,
        attributes={AGENT_STATE: TOOLS, AGENT_INDEX: indexed("a", "b")},
        entries=loaded(final("a"), replace(CALL, tool_call_id="b")),
        results={
            "ToolCallResults": [
                ToolCallCompleted("a", "turn-1", 120),
                ToolCallCompleted("b", "turn-0", 999),
            ]
        },
    )
    (movement,) = run.next_steps
    assert (movement.step_type, movement.step_input.int_value) == ("ResumeTurn", 1)
    assert "AgentState" not in run.writes
    assert [e.record_bytes for e in run.writes["AgentSessionIndex"].tool_calls] == [120, 100]


@pytest.mark.requirement("CORE-STEP-08")
async def test_a_turn_goes_back_to_the_model_once_all_its_records_are_final() -> None:
    run = await worker().run(
        "ResumeTurn",
        1,
        attributes={AGENT_STATE: TOOLS, AGENT_INDEX: indexed("a")},
        entries=loaded(final("a")),
        results={"ToolCallResults": [ToolCallCompleted("a", "turn-1", 120)]},
    )
    assert [m.step_type for m in run.next_steps] == ["RunModel"]
    assert run.writes["AgentState"] == MODEL


async def approve(answer: AgentInterruptResolution | None, **changes: Any) -> Any:
    interrupt = replace(INTERRUPT, **changes)
    return await worker().run(
        "AwaitToolApproval",
        "c1",
        attributes={AGENT_STATE: TOOLS, PENDING_INTERRUPTS: [] if answer else [interrupt]},
        entries=loaded(ASKED),
        results={} if answer is None else {"InterruptResolutions/turn-1~c1": [answer]},
    )


@pytest.mark.requirement("CORE-APPROVAL-01", "CORE-EVENT-08")
async def test_an_approved_call_goes_on_to_its_tool_step_and_is_not_finished() -> None:
    run = await approve(AgentInterruptResolution(True))
    assert [m.step_type for m in run.next_steps] == ["CallSingleAttemptTool"]
    assert run.writes["AgentToolCalls/c1"].status is ToolCallStatus.APPROVED
    assert run.published == []
    (event,) = run.events
    assert event.payload == {
        "interrupt_id": "turn-1~c1",
        "approved": True,
        "rejection_message": None,
    }


@pytest.mark.requirement("CORE-TOOL-05", "CORE-APPROVAL-05", "CORE-EVENT-06")
async def test_a_rejected_call_is_finished_without_a_tool_step() -> None:
    run = await approve(AgentInterruptResolution(False, "no"))
    assert run.next_steps == []
    record = run.writes["AgentToolCalls/c1"]
    assert (record.status, record.rejection_message) == (ToolCallStatus.REJECTED, "no")
    assert run.published == ["ToolCallResults"]
    assert [e.type.value for e in run.events] == ["interrupt_resolved", "tool_call_finished"]


@pytest.mark.requirement("CORE-APPROVAL-06")
async def test_an_expired_question_is_finished_and_pending_no_more() -> None:
    run = await approve(None, deadline=NOW)
    assert run.next_steps == []
    assert run.writes["AgentToolCalls/c1"].status is ToolCallStatus.REJECTED
    assert run.writes["PendingInterrupts"] == []
    assert run.writes["PendingApprovalCount"] == 0
    assert run.published == ["ToolCallResults"]


@pytest.mark.requirement("CORE-APPROVAL-04")
async def test_an_early_timer_waits_again_and_changes_nothing() -> None:
    run = await approve(None, deadline=datetime.now(UTC) + timedelta(hours=1))
    assert [m.step_type for m in run.next_steps] == ["AwaitToolApproval"]
    assert run.writes == {}
    assert run.published == []


@pytest.mark.requirement("CORE-APPROVAL-02", "CORE-EVENT-07")
async def test_a_question_is_told_once_and_waits_for_its_answer_and_its_deadline() -> None:
    attributes = {AGENT_STATE: TOOLS, PENDING_INTERRUPTS: [INTERRUPT]}
    run = await worker().wait_for("AwaitToolApproval", "c1", attributes=attributes)
    assert len(run.waits.channel_conditions) == 1
    assert list(run.waits.timer_conditions) == []
    (event,) = run.events
    assert (event.type, event.turn_id) == (AgentEventType.INTERRUPT_RAISED, "turn-1")
    assert event.payload == {
        "interrupt_id": "turn-1~c1",
        "tool_call_id": "c1",
        "tool_name": "pay",
        "deadline": None,
    }
    again = await worker().wait_for(
        "AwaitToolApproval", "c1", attributes=attributes, came_from="AwaitToolApproval-1"
    )
    assert again.events == []
    timed = replace(INTERRUPT, deadline=datetime.now(UTC) + timedelta(hours=1))
    attributes = {AGENT_STATE: TOOLS, PENDING_INTERRUPTS: [timed]}
    run = await worker().wait_for("AwaitToolApproval", "c1", attributes=attributes)
    assert len(run.waits.channel_conditions) == 1
    assert len(run.waits.timer_conditions) == 1
    attributes = {AGENT_STATE: TOOLS, PENDING_INTERRUPTS: []}
    run = await worker().wait_for("AwaitToolApproval", "c1", attributes=attributes)
    assert list(run.waits.timer_conditions) == []
