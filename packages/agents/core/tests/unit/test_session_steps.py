"""What each Step and RPC of a session does with what is stored, one at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from dex import ErrorSubStatus, RpcLockConflictError
from fake_worker import FakeWorker
from session_harness import ONE_CALL, FunctionRunner, answer, ask, tool_call, user_message

from dex_agents import (
    AGENT_INDEX,
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_TOOL_CALLS,
    AGENT_USAGE,
    FRAMEWORK_RUN_STATE,
    PENDING_INTERRUPTS,
    AgentEventType,
    AgentInterrupt,
    AgentInterruptResolution,
    AgentMessage,
    AgentSessionFlow,
    AgentSessionOptions,
    AgentSessionStartInput,
    AgentState,
    AgentStatus,
    AgentToolCall,
    AgentTurnContext,
    AgentUsage,
    AgentUserMessage,
    ListAgentMessagesRequest,
    MessageRole,
    ResolveInterruptRequest,
    ToolCallCompleted,
    ToolCallStatus,
    ToolEffect,
    ToolPolicy,
    TurnContinues,
    message_sequence_key,
)
from dex_agents import _repeating as repeating
from dex_agents._internal_values import AgentSessionIndex, ToolCallEntry
from dex_agents._session.ids import turn_slot_key
from dex_agents.persistence import AGENT_MESSAGE_IDS, PENDING_TURN_FAILURE
from dex_agents.session_flow import StepFailedError
from dex_agents.session_flow._heartbeat import HEARTBEAT_SECONDS
from dex_agents.values import PendingTurnFailure

NOW = datetime(2026, 5, 1, tzinfo=UTC)
MESSAGE = AgentMessage(1, "turn-1", MessageRole.USER, "hi", "{}", NOW)
CALL = AgentToolCall("c1", "turn-1", "pay", "{}", ToolEffect.READ, False, 0)
WAITING = AgentState(AgentStatus.WAITING_FOR_USER_MESSAGE)
MODEL = AgentState(AgentStatus.RUNNING_MODEL, 0, 1, "turn-1")
TOOLS = AgentState(AgentStatus.RUNNING_TOOLS, 0, 1, "turn-1")
ASKED = replace(
    CALL,
    effect=ToolEffect.UNCLASSIFIED,
    requires_approval=True,
    status=ToolCallStatus.AWAITING_APPROVAL,
)
INTERRUPT = AgentInterrupt("turn-1~c1", "turn-1", "c1", "pay", "{}", ToolEffect.UNCLASSIFIED, NOW)
ONE_MESSAGE = [(AGENT_MESSAGES, message_sequence_key(1), MESSAGE)]


def worker(
    runner: FunctionRunner | None = None, options: AgentSessionOptions | None = None
) -> FakeWorker:
    return FakeWorker(AgentSessionFlow(runner or FunctionRunner(), flow_type="T", options=options))


def final(call_id: str, order: int = 0) -> AgentToolCall:
    return replace(
        CALL,
        tool_call_id=call_id,
        deferral_order=order,
        status=ToolCallStatus.SUCCEEDED,
        output=f"{call_id} done",
    )


def loaded(*records: AgentToolCall) -> list[Any]:
    return [(AGENT_TOOL_CALLS, record.tool_call_id, record) for record in records]


def indexed(*call_ids: str) -> AgentSessionIndex:
    return AgentSessionIndex((100,), tool_calls=tuple(ToolCallEntry(i, 100) for i in call_ids))


# --- words and keys -----------------------------------------------------------------------------


@pytest.mark.requirement("CORE-STORE-04")
def test_the_words_that_are_stored_and_sent_never_change() -> None:
    assert [s.value for s in AgentStatus] == [
        "waiting_for_user_message",
        "running_model",
        "running_tools",
    ]
    assert [e.value for e in ToolEffect] == [
        "read",
        "idempotent_write",
        "non_idempotent_write",
        "unclassified",
    ]
    assert [s.value for s in ToolCallStatus] == [
        "pending",
        "awaiting_approval",
        "approved",
        "succeeded",
        "failed",
        "rejected",
        "outcome_unknown",
    ]
    assert {"user", "assistant", "tool"} <= {r.value for r in MessageRole}


@pytest.mark.requirement("CORE-EVENT-01")
def test_the_kinds_of_events_never_change() -> None:
    assert {e.value for e in AgentEventType} == {
        "turn_started",
        "turn_completed",
        "turn_failed",
        "text_delta",
        "reasoning_delta",
        "tool_call_started",
        "tool_call_finished",
        "tool_call_deferred",
        "interrupt_raised",
        "interrupt_resolved",
        "usage_recorded",
    }


@pytest.mark.requirement("CORE-STORE-02")
def test_a_message_key_has_twelve_digits_so_that_keys_sort_by_age() -> None:
    assert message_sequence_key(1) == "000000000001"
    assert message_sequence_key(123456789012) == "123456789012"
    assert sorted(map(message_sequence_key, (10, 9, 100))) == [
        "000000000009",
        "000000000010",
        "000000000100",
    ]


# --- between turns ------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-STEP-01", "CORE-STEP-02", "CORE-STORE-12")
async def test_a_new_session_has_no_usage_and_no_question() -> None:
    run = await worker().run("StartAgentSession", AgentSessionStartInput(" \n"), attributes={})
    assert run.writes["AgentState"] == WAITING
    assert run.writes["AgentStatus"] == "waiting_for_user_message"
    assert run.writes["AgentUsage"] == AgentUsage()
    assert run.writes["PendingInterrupts"] == []
    assert run.writes["PendingApprovalCount"] == 0
    assert [m.step_type for m in run.next_steps] == ["AwaitUserMessage"]


@pytest.mark.requirement("CORE-RUNNER-02", "CORE-STEP-02", "CORE-STORE-03", "CORE-EVENT-03")
async def test_a_first_message_starts_the_first_turn_at_once() -> None:
    run = await worker().run(
        "StartAgentSession",
        AgentSessionStartInput("hi", "id-1"),
        attributes={},
        entries=[(AGENT_MESSAGE_IDS, turn_slot_key(1), None)],
    )
    assert [m.step_type for m in run.next_steps] == ["RunModel"]
    stored = run.writes["AgentMessages/000000000001"]
    assert (stored.sequence, stored.turn_id, stored.text) == (1, "turn-1", "hi")
    assert run.writes["AgentState"] == MODEL
    assert [(e.type.value, e.turn_id, e.payload) for e in run.events] == [
        ("turn_started", "turn-1", {"sequence": 1})
    ]


@pytest.mark.requirement("CORE-RPC-13", "CORE-STEP-03")
async def test_a_waiting_session_takes_one_message_and_starts_a_turn() -> None:
    waits = await worker().wait_for("AwaitUserMessage", attributes={AGENT_STATE: WAITING})
    (condition,) = waits.waits.channel_conditions
    assert (condition.channel_name, condition.at_least, condition.at_most) == (
        "QueuedUserMessages",
        1,
        1,
    )
    assert waits.events == []
    run = await worker().run(
        "AwaitUserMessage",
        attributes={AGENT_STATE: WAITING, AGENT_INDEX: AgentSessionIndex()},
        entries=[(AGENT_MESSAGE_IDS, turn_slot_key(1), None)],
        results={"QueuedUserMessages": [AgentUserMessage("hi", "id-1")]},
    )
    assert [m.step_type for m in run.next_steps] == ["RunModel"]
    assert run.writes["AgentMessages/000000000001"].message_id == "id-1"
    assert run.writes["AgentMessageIds/id-1"].message_id == "id-1"


@pytest.mark.requirement("CORE-EVENT-04")
async def test_the_end_of_a_turn_is_told_by_the_step_that_waits_next() -> None:
    ended = AgentState(AgentStatus.WAITING_FOR_USER_MESSAGE, 2, 7)
    waits = await worker().wait_for("AwaitUserMessage", attributes={AGENT_STATE: ended})
    assert [(e.type.value, e.turn_id, e.payload) for e in waits.events] == [
        ("turn_completed", "turn-2", {"message_count": 7})
    ]
    failed = replace(ended, last_turn_error="E: no")
    waits = await worker().wait_for("AwaitUserMessage", attributes={AGENT_STATE: failed})
    assert [(e.type.value, e.turn_id, e.payload) for e in waits.events] == [
        ("turn_failed", "turn-2", {"error": "E: no"})
    ]


@pytest.mark.requirement("CORE-RUNNER-01")
async def test_the_message_a_runner_builds_must_be_the_users() -> None:
    runner = FunctionRunner(build=lambda t: replace(user_message(t), role=MessageRole.ASSISTANT))
    with pytest.raises(StepFailedError, match="role"):
        await worker(runner).run(
            "StartAgentSession",
            AgentSessionStartInput("hi", "id-1"),
            attributes={},
            entries=[(AGENT_MESSAGE_IDS, turn_slot_key(1), None)],
        )


# --- the model Step -----------------------------------------------------------------------------


@pytest.mark.requirement(
    "CORE-RUNNER-03", "CORE-RUNNER-04", "CORE-RUNNER-05", "CORE-RUNNER-06", "CORE-RUNNER-07"
)
async def test_a_runner_gets_the_committed_turn() -> None:
    runner = FunctionRunner(lambda turn: answer("done"))
    options = AgentSessionOptions(tool_policies={"pay": ToolPolicy(ToolEffect.READ)})
    await worker(runner, options).run(
        "RunModel",
        attributes={AGENT_STATE: MODEL, AGENT_INDEX: indexed("c1"), FRAMEWORK_RUN_STATE: "paused"},
        entries=[*ONE_MESSAGE, *loaded(final("c1"))],
        attempt=2,
    )
    (turn,) = runner.turns
    assert (turn.flow_id, turn.turn_id, turn.attempt) == ("session-1", "turn-1", 2)
    assert turn.messages == (MESSAGE,)
    assert (turn.framework_run_state, turn.is_resuming) == ("paused", True)
    assert turn.recorded_tool_call("c1") == final("c1")
    assert turn.recorded_tool_call("c2") is None
    assert turn.resolve_tool_policy("pay") == ToolPolicy(ToolEffect.READ)
    assert turn.resolve_tool_policy("x", ToolEffect.IDEMPOTENT_WRITE) == ToolPolicy(
        ToolEffect.IDEMPOTENT_WRITE
    )
    assert turn.resolve_tool_policy("x") == ToolPolicy(ToolEffect.UNCLASSIFIED)


@pytest.mark.requirement("CORE-RUNNER-05")
async def test_the_first_model_call_of_a_turn_has_no_run_state() -> None:
    runner = FunctionRunner()
    await worker(runner).run(
        "RunModel",
        attributes={AGENT_STATE: MODEL, AGENT_INDEX: indexed()},
        entries=ONE_MESSAGE,
    )
    (turn,) = runner.turns
    assert turn.framework_run_state is None
    assert not turn.is_resuming


@pytest.mark.requirement("CORE-FAIL-02")
async def test_a_failed_model_call_fails_the_attempt_and_stores_nothing() -> None:
    def model(turn: AgentTurnContext) -> Any:
        raise ConnectionError("gone")

    with pytest.raises(StepFailedError, match="ConnectionError: gone"):
        await worker(FunctionRunner(model)).run(
            "RunModel",
            attributes={AGENT_STATE: MODEL, AGENT_INDEX: indexed()},
            entries=ONE_MESSAGE,
        )


@pytest.mark.requirement("CORE-RUNNER-10", "CORE-EVENT-05")
async def test_asking_for_tools_appends_no_message() -> None:
    run = await worker(FunctionRunner(lambda turn: ask(tool_call("c1")))).run(
        "RunModel",
        attributes={AGENT_STATE: MODEL, AGENT_INDEX: indexed()},
        entries=ONE_MESSAGE,
    )
    assert not [key for key in run.writes if key.startswith("AgentMessages/")]
    assert run.writes["AgentState"] == TOOLS
    assert "PendingInterrupts" not in run.writes
    deferred = [e.payload for e in run.events if e.type is AgentEventType.TOOL_CALL_DEFERRED]
    assert deferred == [
        {"tool_call_id": "c1", "tool_name": "look", "effect": "read", "requires_approval": False}
    ]


@pytest.mark.requirement("CORE-RUNNER-14", "CORE-STEP-06", "CORE-EVENT-09")
async def test_a_turn_that_continues_stores_its_run_state_and_calls_the_model_again() -> None:
    run = await worker(FunctionRunner(lambda turn: TurnContinues("more", ONE_CALL))).run(
        "RunModel",
        attributes={AGENT_STATE: MODEL, AGENT_INDEX: indexed(), AGENT_USAGE: ONE_CALL},
        entries=ONE_MESSAGE,
    )
    assert [m.step_type for m in run.next_steps] == ["RunModel"]
    assert run.writes["FrameworkRunState"] == "more"
    assert run.writes["AgentUsage"] == ONE_CALL + ONE_CALL
    (event,) = run.events
    assert event.type is AgentEventType.USAGE_RECORDED
    assert set(event.payload) == {"recorded", "session"}


# --- tool Steps ---------------------------------------------------------------------------------


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


# --- approvals ----------------------------------------------------------------------------------


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


# --- failed turns -------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-FAIL-06")
async def test_a_failed_turn_without_calls_appends_nothing() -> None:
    run = await worker().run(
        "RecordTurnFailure",
        attributes={
            AGENT_STATE: MODEL,
            AGENT_INDEX: indexed(),
            PENDING_TURN_FAILURE: PendingTurnFailure("tripped", "Guardrail"),
        },
    )
    assert not [key for key in run.writes if key.startswith("AgentMessages/")]
    state = run.writes["AgentState"]
    assert state.last_turn_error == "Guardrail: tripped"
    assert (state.status, state.turn_count) == (AgentStatus.WAITING_FOR_USER_MESSAGE, 1)
    assert run.writes["PendingTurnFailure"] is None
    assert [m.step_type for m in run.next_steps] == ["AwaitUserMessage"]


@pytest.mark.requirement("CORE-STEP-13", "CORE-FAIL-06", "CORE-FAIL-07")
async def test_a_failed_turn_leaves_one_note_and_nothing_else_of_its_calls() -> None:
    run = await worker().run(
        "RecordTurnFailure",
        attributes={
            AGENT_STATE: MODEL,
            AGENT_INDEX: indexed("a", "b"),
            FRAMEWORK_RUN_STATE: "paused",
            PENDING_TURN_FAILURE: PendingTurnFailure("older", "E"),
        },
        entries=loaded(final("b", 1), final("a")),
        recovery="ConnectionError: gone",
    )
    (note,) = [value for key, value in run.writes.items() if key.startswith("AgentMessages/")]
    assert (note.sequence, note.role, note.turn_id) == (2, MessageRole.USER, "turn-1")
    assert note.text == (
        "[Dex] The previous turn failed after these tool calls ran:\n"
        "- pay {} -> succeeded: a done\n"
        "- pay {} -> succeeded: b done\n"
        "Do not repeat these tool calls unless the user asks again."
    )
    assert run.writes["AgentToolCalls/a"] is None
    assert run.writes["AgentToolCalls/b"] is None
    assert run.writes["FrameworkRunState"] is None
    assert run.writes["AgentState"].last_turn_error == "ConnectionError: gone"


# --- RPCs ---------------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-RPC-01")
async def test_a_blank_message_is_answered_false_and_not_queued() -> None:
    blank = await worker().rpc("send_user_message", AgentUserMessage(" \t"), attributes={})
    assert (blank.reply, blank.published) == (False, [])
    sent = await worker().rpc("send_user_message", AgentUserMessage("hi"), attributes={})
    assert (sent.reply, sent.published) == (True, ["QueuedUserMessages"])


@pytest.mark.requirement("CORE-STORE-12", "CORE-RPC-03")
async def test_an_answer_removes_the_question_and_is_passed_on_in_one_commit() -> None:
    attributes = {PENDING_INTERRUPTS: [INTERRUPT, replace(INTERRUPT, interrupt_id="turn-1~c2")]}
    run = await worker().rpc(
        "resolve_interrupt", ResolveInterruptRequest("turn-1~c1", True), attributes=attributes
    )
    assert run.reply is True
    assert run.published == ["InterruptResolutions/turn-1~c1"]
    assert [i.interrupt_id for i in run.writes["PendingInterrupts"]] == ["turn-1~c2"]
    assert run.writes["PendingApprovalCount"] == 1


@pytest.mark.requirement("CORE-RPC-04")
@pytest.mark.parametrize("pending", [[], [replace(INTERRUPT, deadline=NOW)]])
async def test_an_answer_to_nothing_or_too_late_is_false_and_changes_nothing(pending: Any) -> None:
    run = await worker().rpc(
        "resolve_interrupt",
        ResolveInterruptRequest("turn-1~c1", True),
        attributes={PENDING_INTERRUPTS: pending},
    )
    assert (run.reply, run.published, run.writes) == (False, [], {})


@pytest.mark.requirement("CORE-RPC-07")
async def test_a_snapshot_has_no_state_before_the_first_step_has_committed() -> None:
    snapshot = (await worker().rpc("get_agent_snapshot", attributes={})).reply
    assert snapshot.state is None
    assert snapshot.messages == ()
    assert snapshot.usage == AgentUsage()


@pytest.mark.requirement("CORE-RPC-06", "CORE-RPC-09")
async def test_a_page_is_oldest_first_and_its_limit_stays_in_range() -> None:
    messages = [replace(MESSAGE, sequence=n) for n in range(1, 251)]
    entries = [(AGENT_MESSAGES, message_sequence_key(m.sequence), m) for m in messages]
    attributes = {
        AGENT_STATE: AgentState(AgentStatus.WAITING_FOR_USER_MESSAGE, 1, 250),
        AGENT_INDEX: AgentSessionIndex((100,) * 250),
    }
    for limit, count in ((0, 1), (-5, 1), (7, 7), (999, 200)):
        page = (
            await worker().rpc(
                "list_agent_messages",
                ListAgentMessagesRequest(0, limit),
                attributes=attributes,
                entries=entries,
            )
        ).reply
        assert [m.sequence for m in page.messages] == list(range(1, count + 1))
        assert (page.next_after_sequence, page.has_more) == (count, True)
    snapshot = (
        await worker().rpc("get_agent_snapshot", attributes=attributes, entries=entries)
    ).reply
    assert [m.sequence for m in snapshot.messages] == list(range(51, 251))


# --- the Flow -----------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-EVENT-14")
def test_each_flow_has_a_stream_of_its_own_with_the_capacity_of_its_options() -> None:
    options = AgentSessionOptions(agent_events_capacity_bytes=5_000)
    small = AgentSessionFlow(FunctionRunner(), flow_type="Small", options=options).agent_events
    usual = AgentSessionFlow(FunctionRunner(), flow_type="Usual").agent_events
    assert small is not usual
    assert (small.name, small.stream_capacity_bytes) == ("AgentEvents", 5_000)
    assert (usual.name, usual.stream_capacity_bytes) == ("AgentEvents", 10 * 1024 * 1024)


# --- times --------------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-TOOL-14")
def test_a_session_beats_every_twenty_seconds() -> None:
    assert HEARTBEAT_SECONDS == 20


@pytest.mark.requirement("CORE-RPC-05")
async def test_a_call_whose_lock_is_held_is_repeated_for_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert repeating.LOCK_RETRY_SECONDS == 5
    conflict = RpcLockConflictError(
        grpc.StatusCode.ABORTED, next(iter(ErrorSubStatus)), "held", "invoke_rpc", "session-1"
    )
    tries: list[int] = []

    async def call() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise conflict
        return "answered"

    assert await repeating.while_locked(call) == "answered"
    monkeypatch.setattr(repeating, "LOCK_RETRY_SECONDS", 0)
    tries.clear()
    with pytest.raises(RpcLockConflictError):
        await repeating.while_locked(call)
