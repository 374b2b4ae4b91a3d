"""What each Step of a turn does with what is stored, one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from session_harness import ONE_CALL, FunctionRunner, answer, ask, tool_call, user_message
from step_values import MESSAGE, MODEL, ONE_MESSAGE, TOOLS, WAITING, final, indexed, loaded, worker

from dex_agents import (
    AGENT_INDEX,
    AGENT_STATE,
    AGENT_USAGE,
    FRAMEWORK_RUN_STATE,
    AgentEventType,
    AgentSessionOptions,
    AgentSessionStartInput,
    AgentState,
    AgentStatus,
    AgentTurnContext,
    AgentUsage,
    AgentUserMessage,
    MessageRole,
    ToolEffect,
    ToolPolicy,
    TurnContinues,
)
from dex_agents._internal_values import AgentSessionIndex
from dex_agents._session.ids import turn_slot_key
from dex_agents.persistence import AGENT_MESSAGE_IDS, PENDING_TURN_FAILURE
from dex_agents.session_flow import StepFailedError
from dex_agents.values import PendingTurnFailure


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
