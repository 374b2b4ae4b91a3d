"""Values and a worker that the tests of single Steps and RPCs share."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fake_worker import FakeWorker
from session_harness import FunctionRunner

from dex_agents import (
    AGENT_MESSAGES,
    AGENT_TOOL_CALLS,
    AgentInterrupt,
    AgentMessage,
    AgentSessionFlow,
    AgentSessionOptions,
    AgentState,
    AgentStatus,
    AgentToolCall,
    MessageRole,
    ToolCallStatus,
    ToolEffect,
    message_sequence_key,
)
from dex_agents._internal_values import AgentSessionIndex, ToolCallEntry

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
