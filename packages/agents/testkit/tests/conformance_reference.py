"""A small runner that keeps the whole contract, in pieces that a broken one can replace."""

from __future__ import annotations

import json
from typing import Any

from dex_agents import (
    AgentToolCall,
    AgentTurnContext,
    AgentTurnOutcome,
    AgentUsage,
    DeferredToolCall,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    ModelError,
    ToolCallsRequested,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
    TurnContinues,
    TurnFailedError,
    describe_tool_call_outcome,
)
from dex_agents_testkit.conformance import Ability, ModelFailure, ModelReply, ModelToolCall, Stage

Item = dict[str, Any]
Progress = dict[str, Any]

ALL_ABILITIES = frozenset(Ability)


class ReferenceRunner:
    """Keeps every requirement."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def build_user_message(self, text: str) -> FrameworkMessage:
        return FrameworkMessage(MessageRole.USER, self.dump({"role": "user", "text": text}), text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        progress = self.load_state(turn)
        results = [self.result_item(turn, call_id) for call_id in progress["pending"]]
        items: list[Item] = [*progress["items"], *results]
        history = [json.loads(message.framework_item) for message in turn.messages]
        reply = await self.call_model(turn, [*self.history(history), *items])
        if reply.failure is not None:
            return self.fail(turn, reply.failure)
        self.stream(turn, reply)
        if reply.text:
            items.append({"role": "assistant", "text": reply.text})
        usage = self.usage(progress, reply)
        if reply.hands_over:
            return self.after_handoff(turn, items, usage)
        if not reply.tool_calls:
            return self.completed(turn, items, usage)
        calls = tuple(self.defer(turn, call) for call in reply.tool_calls)
        items += [
            {"role": "assistant", "id": call.tool_call_id, "name": call.tool_name, "arguments": a}
            for call, a in zip(calls, [c.arguments for c in reply.tool_calls], strict=True)
        ]
        state = self.dump_state(turn, items, [call.tool_call_id for call in calls])
        return ToolCallsRequested(state, calls, usage)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        arguments = json.loads(call.tool_call.arguments)
        output = await self.run_tool(call.tool_call.tool_name, arguments["key"], call)
        return self.result(call, output)

    # --- what broken runners replace ---

    def dump(self, item: Item) -> str:
        return json.dumps(item, ensure_ascii=False)

    def load_state(self, turn: AgentTurnContext) -> Progress:
        if turn.framework_run_state is None:
            return {"items": [], "pending": []}
        return json.loads(turn.framework_run_state)

    def dump_state(self, turn: AgentTurnContext, items: list[Item], pending: list[str]) -> str:
        return json.dumps({"items": items, "pending": pending})

    def history(self, items: list[Item]) -> list[Item]:
        return items

    async def call_model(self, turn: AgentTurnContext, given: list[Item]) -> ModelReply:
        return await self.stage.call_model(given)

    def fail(self, turn: AgentTurnContext, failure: ModelFailure) -> AgentTurnOutcome:
        if failure.is_final:
            raise TurnFailedError(failure.message, "RequestRefused")
        raise ModelError(failure.message, "Overloaded", retry_after=failure.retry_after)

    def stream(self, turn: AgentTurnContext, reply: ModelReply) -> None:
        for letter in reply.text:
            turn.events.write_text_delta(letter)

    def usage(self, progress: Progress, reply: ModelReply) -> AgentUsage:
        return reply.usage

    def after_handoff(
        self, turn: AgentTurnContext, items: list[Item], usage: AgentUsage
    ) -> AgentTurnOutcome:
        return TurnContinues(self.dump_state(turn, items, []), usage)

    def completed(
        self, turn: AgentTurnContext, items: list[Item], usage: AgentUsage
    ) -> AgentTurnOutcome:
        return TurnCompleted(tuple(self.stored(item) for item in items), usage)

    def stored(self, item: Item) -> FrameworkMessage:
        text = str(item.get("text", ""))
        return FrameworkMessage(MessageRole(item["role"]), self.dump(item), text)

    def defer(self, turn: AgentTurnContext, call: ModelToolCall) -> DeferredToolCall:
        return DeferredToolCall(
            self.call_id(call),
            call.tool_name,
            call.arguments,
            self.policy(turn, call),
            self.needs_approval(call),
        )

    def call_id(self, call: ModelToolCall) -> str:
        return call.tool_call_id.replace("/", "%2F")

    def policy(self, turn: AgentTurnContext, call: ModelToolCall) -> ToolPolicy:
        hint = self.stage.scenario.tool(call.tool_name).effect_hint
        return turn.resolve_tool_policy(call.tool_name, hint)

    def needs_approval(self, call: ModelToolCall) -> bool | None:
        return self.stage.scenario.tool(call.tool_name).needs_approval

    def result_item(self, turn: AgentTurnContext, tool_call_id: str) -> Item:
        record = turn.tool_calls[tool_call_id]
        item = {"role": "tool", "id": tool_call_id, "text": self.result_text(record)}
        return {**item, "parts": self.parts(record)}

    def parts(self, record: AgentToolCall) -> list[str]:
        return json.loads(record.framework_payload or "[]")

    def result_text(self, record: AgentToolCall) -> str:
        return describe_tool_call_outcome(record)

    def result(self, call: DeferredToolExecution, output: str) -> ToolExecutionResult:
        parts = self.stage.scenario.tool(call.tool_call.tool_name).parts
        return ToolExecutionResult(output, json.dumps(parts) if parts else None)

    async def run_tool(self, name: str, key: str, call: DeferredToolExecution) -> str:
        return await self.stage.run_tool(name, key, call.idempotency_key)
