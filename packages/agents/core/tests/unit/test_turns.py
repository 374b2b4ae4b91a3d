"""Turns: how one starts, asks for tools, and ends; and what a runner may not return."""

from __future__ import annotations

import random
import string
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex_agents import (
    AgentState,
    AgentStatus,
    AgentToolCall,
    AgentUsage,
    DeferredToolCall,
    FrameworkMessage,
    MessageRole,
    RunnerContractError,
    ToolCallsRequested,
    ToolCallStatus,
    ToolEffect,
    ToolPolicy,
    TurnCompleted,
    TurnContinues,
    TurnFailedError,
)
from dex_agents._json_form import encoded_bytes
from dex_agents._session.turns import (
    MAX_RUN_STATE_BYTES,
    MAX_TOOL_CALLS,
    check_run_state,
    check_usage,
    check_user_message,
    complete_turn,
    continue_turn,
    defer_tool_calls,
    fail_turn,
    initial_state,
    running_turn_id,
    start_turn,
    uncounted_usage,
    unfinished_calls,
)

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
RUNNING = AgentState(AgentStatus.RUNNING_MODEL, 2, 7, "turn-3", "an old error")


def said(text: str, role: MessageRole = MessageRole.ASSISTANT) -> FrameworkMessage:
    return FrameworkMessage(role, f'"{text}"', text, "Support")


def noise(length: int) -> str:
    return "".join(random.Random(5).choices(string.ascii_letters, k=length))


def deferred(call_id: str, effect: ToolEffect = ToolEffect.READ, **more: Any) -> DeferredToolCall:
    return DeferredToolCall(call_id, "look", "{}", ToolPolicy(effect), **more)


@pytest.mark.requirement("CORE-RUNNER-02", "CORE-STEP-16", "CORE-FAIL-09", "CORE-STORE-05")
def test_a_turn_starts_with_the_next_number_and_stores_the_user_message() -> None:
    state = AgentState(AgentStatus.WAITING_FOR_USER_MESSAGE, 2, 7, None, "an old error")
    started = start_turn(state, said("hi", MessageRole.USER), "id-1", NOW)
    assert started.state == AgentState(AgentStatus.RUNNING_MODEL, 2, 8, "turn-3", "an old error")
    message = started.message.message
    assert (message.sequence, message.turn_id) == (8, "turn-3")
    assert (message.message_id, message.created_at) == ("id-1", NOW)
    assert started.message.size == encoded_bytes(message)
    assert running_turn_id(state) == running_turn_id(started.state) == "turn-3"


@pytest.mark.requirement("CORE-STORE-05")
def test_the_first_turn_is_turn_one() -> None:
    assert running_turn_id(initial_state()) == "turn-1"


@pytest.mark.requirement("CORE-RUNNER-09", "CORE-RUNNER-18", "CORE-FAIL-09", "CORE-STORE-03")
def test_a_completed_turn_stores_all_its_items_and_clears_the_last_error() -> None:
    ended = complete_turn(RUNNING, TurnCompleted((said("a"), said("b", MessageRole.TOOL))), NOW)
    assert ended.state == AgentState(AgentStatus.WAITING_FOR_USER_MESSAGE, 3, 9, None, None)
    stored = [sized.message for sized in ended.messages]
    assert [(m.sequence, m.turn_id, m.role, m.text, m.agent_name) for m in stored] == [
        (8, "turn-3", MessageRole.ASSISTANT, "a", "Support"),
        (9, "turn-3", MessageRole.TOOL, "b", "Support"),
    ]


@pytest.mark.requirement("CORE-FAIL-07", "CORE-STORE-05")
def test_a_failed_turn_counts_and_stores_the_note_only() -> None:
    ended = fail_turn(RUNNING, "E: gone", said("note", MessageRole.USER), NOW)
    assert ended.state == AgentState(AgentStatus.WAITING_FOR_USER_MESSAGE, 3, 8, None, "E: gone")
    assert [m.message.text for m in ended.messages] == ["note"]
    assert fail_turn(RUNNING, "E", None, NOW).messages == ()


@pytest.mark.requirement("CORE-FAIL-14")
def test_a_very_long_error_is_cut_and_stays_readable() -> None:
    error = fail_turn(RUNNING, "ü" * 5000 + "\ud800", None, NOW).state.last_turn_error
    assert error is not None
    assert len(error.encode()) <= 2000
    assert error.endswith("(cut)")


@pytest.mark.requirement("CORE-RUNNER-17", "CORE-EFFECT-06")
def test_deferred_calls_get_records_in_model_order_and_approvals_where_needed() -> None:
    calls = (
        deferred("a"),
        deferred("b", ToolEffect.NON_IDEMPOTENT_WRITE),
        deferred("c", ToolEffect.READ, requires_approval=True),
        deferred("d", ToolEffect.IDEMPOTENT_WRITE, framework_payload="{}"),
    )
    result = defer_tool_calls(
        RUNNING, ToolCallsRequested("s", calls), ["x", "y"], NOW, timedelta(hours=1)
    )
    assert result.state == AgentState(AgentStatus.RUNNING_TOOLS, 2, 7, "turn-3", "an old error")
    assert [(r.tool_call_id, r.deferral_order, r.status) for r in result.records] == [
        ("a", 2, ToolCallStatus.PENDING),
        ("b", 3, ToolCallStatus.AWAITING_APPROVAL),
        ("c", 4, ToolCallStatus.AWAITING_APPROVAL),
        ("d", 5, ToolCallStatus.PENDING),
    ]
    assert result.records[3].framework_payload == "{}"
    assert [(i.interrupt_id, i.deadline) for i in result.interrupts] == [
        ("turn-3~b", NOW + timedelta(hours=1)),
        ("turn-3~c", NOW + timedelta(hours=1)),
    ]


@pytest.mark.requirement("CORE-EFFECT-06")
def test_a_framework_cannot_lift_an_approval_that_the_policy_asks_for() -> None:
    call = deferred("a", ToolEffect.UNCLASSIFIED, requires_approval=False)
    result = defer_tool_calls(RUNNING, ToolCallsRequested("s", (call,)), [], NOW, None)
    assert result.interrupts[0].deadline is None
    lifted = DeferredToolCall("a", "look", "{}", ToolPolicy(ToolEffect.UNCLASSIFIED, False))
    assert not defer_tool_calls(
        RUNNING, ToolCallsRequested("s", (lifted,)), [], NOW, None
    ).interrupts


@pytest.mark.requirement("CORE-RUNNER-12", "CORE-TOOL-13")
@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ((), "empty"),
        ((deferred("a"), deferred("a")), "twice"),
        ((deferred("known"),), "twice"),
        ((deferred(""),), "blank"),
        ((deferred(" \n"),), "blank"),
        ((deferred("a/b"),), "'/'"),
        ((deferred("\udc00"),), "UTF-8"),
        ((deferred("x" * 600),), "600"),
        (("not a call",), "str"),
        ((DeferredToolCall(1, "look", "{}", ToolPolicy(ToolEffect.READ)),), "int"),  # pyright: ignore[reportArgumentType] - on purpose
        ((DeferredToolCall("a", "look", {}, ToolPolicy(ToolEffect.READ)),), "arguments"),  # pyright: ignore[reportArgumentType] - on purpose
        ((DeferredToolCall("a", "look", "{}", "read"),), "ToolPolicy"),  # pyright: ignore[reportArgumentType] - on purpose
        (tuple(deferred(f"c{n}") for n in range(MAX_TOOL_CALLS + 1)), "at most"),
    ],
)
def test_calls_that_cannot_be_stored_are_refused_with_the_reason(calls: Any, named: str) -> None:
    with pytest.raises(RunnerContractError, match=named):
        defer_tool_calls(RUNNING, ToolCallsRequested("s", calls), ["known"], NOW, None)


@pytest.mark.requirement("CORE-RUNNER-11", "CORE-COST-17")
@pytest.mark.parametrize(
    ("run_state", "error"),
    [
        ("", RunnerContractError),
        (None, RunnerContractError),
        (b"x", RunnerContractError),
        ("\ud800", RunnerContractError),
        ("x" * (MAX_RUN_STATE_BYTES + 1), TurnFailedError),
    ],
)
def test_a_run_state_that_cannot_be_stored_is_refused(
    run_state: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        check_run_state(run_state)


@pytest.mark.requirement("CORE-COST-17")
def test_a_run_state_of_the_greatest_length_is_kept() -> None:
    assert check_run_state("x" * MAX_RUN_STATE_BYTES)


@pytest.mark.requirement("CORE-RUNNER-15")
@pytest.mark.parametrize(
    "item",
    [
        "text",
        FrameworkMessage("robot", "{}", ""),  # pyright: ignore[reportArgumentType] - on purpose
        FrameworkMessage(MessageRole.USER, {"a": 1}, ""),  # pyright: ignore[reportArgumentType] - on purpose
        FrameworkMessage(MessageRole.USER, "{}", None),  # pyright: ignore[reportArgumentType] - on purpose
    ],
)
def test_an_item_that_is_no_message_is_refused(item: Any) -> None:
    with pytest.raises(RunnerContractError):
        complete_turn(RUNNING, TurnCompleted((item,)), NOW)


@pytest.mark.requirement("CORE-TOOL-13", "CORE-COST-17")
def test_what_does_not_fit_into_one_commit_fails_the_turn_with_the_size() -> None:
    big = FrameworkMessage(MessageRole.ASSISTANT, "{}", noise(900_000))
    assert complete_turn(RUNNING, TurnCompleted((big, big, big)), NOW).messages
    with pytest.raises(TurnFailedError, match="3000000"):
        complete_turn(RUNNING, TurnCompleted((big, big, big, big)), NOW)
    bigger = FrameworkMessage(MessageRole.ASSISTANT, "{}", noise(1_100_000))
    with pytest.raises(TurnFailedError, match="1000000"):
        complete_turn(RUNNING, TurnCompleted((bigger,)), NOW)
    long = [
        DeferredToolCall(f"c{n}", "write", noise(300_000), ToolPolicy(ToolEffect.UNCLASSIFIED))
        for n in range(2)
    ]
    with pytest.raises(TurnFailedError, match="approval"):
        defer_tool_calls(RUNNING, ToolCallsRequested("s", tuple(long)), [], NOW, None)


@pytest.mark.requirement("CORE-RUNNER-01")
@pytest.mark.parametrize("built", ["text", None, said("hi")])
def test_a_user_message_must_be_one(built: object) -> None:
    with pytest.raises(RunnerContractError):
        check_user_message(built)


def test_a_user_message_may_name_its_role_as_text() -> None:
    message = FrameworkMessage("user", "{}", "hi")  # pyright: ignore[reportArgumentType] - untyped runners
    assert check_user_message(message) is message


@pytest.mark.requirement("CORE-RUNNER-15")
def test_usage_must_be_usage() -> None:
    assert check_usage(TurnContinues("s", AgentUsage(1))) == AgentUsage(1)
    with pytest.raises(RunnerContractError, match="dict"):
        check_usage(TurnContinues("s", {"model_calls": 1}))  # pyright: ignore[reportArgumentType] - on purpose


@pytest.mark.requirement("CORE-STEP-06")
def test_a_turn_that_continues_runs_the_model_in_the_same_turn() -> None:
    tools = AgentState(AgentStatus.RUNNING_TOOLS, 2, 7, "turn-3", "an old error")
    assert continue_turn(tools) == RUNNING


records = st.lists(
    st.builds(
        lambda order, status, usage: AgentToolCall(
            f"c{order}", "t", "n", "", ToolEffect.READ, False, order, status, usage=usage
        ),
        st.integers(0, 9),
        st.sampled_from(ToolCallStatus),
        st.none() | st.builds(AgentUsage, st.integers(0, 5)),
    ),
    max_size=10,
    unique_by=lambda record: record.deferral_order,
)


@pytest.mark.requirement("CORE-TOOL-12")
@given(records, st.integers(0, 10))
def test_usage_inside_tools_is_added_once_over_the_rounds_of_a_turn(
    given_records: list[AgentToolCall], split: int
) -> None:
    early = [record for record in given_records if record.deferral_order < split]
    first = uncounted_usage(early, 0)
    second = uncounted_usage(given_records, split)
    assert first + second == AgentUsage.total(record.usage for record in given_records)


@pytest.mark.requirement("CORE-STEP-08")
@given(records)
def test_a_call_is_unfinished_until_its_record_is_final(
    given_records: list[AgentToolCall],
) -> None:
    final = {"succeeded", "failed", "rejected", "outcome_unknown"}
    expected = [r.tool_call_id for r in given_records if r.status.value not in final]
    assert unfinished_calls(given_records) == expected
