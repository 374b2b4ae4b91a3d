"""Words, keys and settings that never change without a release that says so."""

from __future__ import annotations

import pytest
from session_harness import FunctionRunner

from dex_agents import (
    AgentEventType,
    AgentSessionFlow,
    AgentSessionOptions,
    AgentStatus,
    MessageRole,
    ToolCallStatus,
    ToolEffect,
    message_sequence_key,
)
from dex_agents.session_flow._heartbeat import HEARTBEAT_SECONDS


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


@pytest.mark.requirement("CORE-EVENT-14")
def test_each_flow_has_a_stream_of_its_own_with_the_capacity_of_its_options() -> None:
    options = AgentSessionOptions(agent_events_capacity_bytes=5_000)
    small = AgentSessionFlow(FunctionRunner(), flow_type="Small", options=options).agent_events
    usual = AgentSessionFlow(FunctionRunner(), flow_type="Usual").agent_events
    assert small is not usual
    assert (small.name, small.stream_capacity_bytes) == ("AgentEvents", 5_000)
    assert (usual.name, usual.stream_capacity_bytes) == ("AgentEvents", 10 * 1024 * 1024)


@pytest.mark.requirement("CORE-TOOL-14")
def test_a_session_beats_every_twenty_seconds() -> None:
    assert HEARTBEAT_SECONDS == 20
