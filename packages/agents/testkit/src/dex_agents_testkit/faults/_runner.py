"""A runner around the application's own that notes the places a call passes."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

from dex_agents.runner import (
    AgentFrameworkRunner,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    FrameworkMessage,
    ToolCallsRequested,
    ToolExecutionResult,
    TurnCompleted,
)
from dex_agents.values import AgentUsage
from dex_agents_testkit.faults._reaching import PlaceRecorder


class RecordingRunner:
    """Passes every call on and notes it before and after.

    Args:
        runner: The application's runner.
        recorder: Where to note, and what strikes.
    """

    def __init__(self, runner: AgentFrameworkRunner, recorder: PlaceRecorder) -> None:
        self._runner = runner
        self._recorder = recorder

    def build_user_message(self, text: str) -> FrameworkMessage:
        """Pass the call on."""
        return self._runner.build_user_message(text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        """Pass the call on between `model.before` and `model.after`."""
        facts = _model_facts(turn)
        self._recorder.reach("model.before", **facts)
        try:
            outcome = await self._runner.run_model_step(turn)
        except Exception as error:
            self._recorder.reach("model.after", raised=type(error).__name__, **facts)
            raise
        self._recorder.reach("model.after", **facts, **_outcome_facts(outcome))
        return outcome

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Pass the call on between `tool.before` and `tool.effect`."""
        record = call.tool_call
        facts = {
            "flow_id": call.flow_id,
            "turn_id": record.turn_id,
            "tool_call_id": record.tool_call_id,
            "idempotency_key": call.idempotency_key,
            "attempt": call.attempt,
            "effect": record.effect.value,
        }
        self._recorder.reach("tool.before", record.tool_name, **facts)
        try:
            result = await self._runner.execute_deferred_tool_call(call)
        except Exception as error:
            raised = type(error).__name__
            self._recorder.reach("tool.effect", record.tool_name, raised=raised, **facts)
            raise
        self._recorder.reach("tool.effect", record.tool_name, **facts)
        return result


def _model_facts(turn: AgentTurnContext) -> dict[str, Any]:
    records = {
        call_id: {"status": record.status.value, "usage": _usage_facts(record.usage)}
        for call_id, record in turn.tool_calls.items()
    }
    state = f"{turn.turn_id}\n{sorted(records)}\n{turn.framework_run_state}"
    return {
        "flow_id": turn.flow_id,
        "turn_id": turn.turn_id,
        "attempt": turn.attempt,
        # The same on every attempt of one Step, and of no other Step.
        "step": hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        "sequences": [message.sequence for message in turn.messages],
        "records": records,
    }


def _outcome_facts(outcome: AgentTurnOutcome) -> dict[str, Any]:
    # A runner that breaks its contract must fail in the session, not here.
    usage = getattr(outcome, "usage", None)
    facts: dict[str, Any] = {
        "outcome": type(outcome).__name__,
        "usage": _usage_facts(usage if isinstance(usage, AgentUsage) else None),
    }
    if isinstance(outcome, ToolCallsRequested):
        facts["calls"] = [call.tool_call_id for call in outcome.tool_calls]
    if isinstance(outcome, TurnCompleted):
        facts["new_messages"] = len(outcome.new_messages)
    return facts


def _usage_facts(usage: AgentUsage | None) -> dict[str, int] | None:
    return None if usage is None else asdict(usage)
