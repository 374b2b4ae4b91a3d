"""Runners that each break one requirement, and keep all others."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from typing import Any, ClassVar, cast

from conformance_reference import Item, Progress, ReferenceRunner

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
    ToolCallStatus,
    ToolEffect,
    ToolExecutionError,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
    TurnFailedError,
)
from dex_agents_testkit.conformance import ModelFailure, ModelReply, ModelToolCall, Stage
from dex_agents_testkit.conformance._model_checks import NOTE


class BrokenRunner(ReferenceRunner):
    """Base of the broken ones.

    Attributes:
        breaks: The requirement that this runner breaks.
    """

    breaks: ClassVar[str]


# --- the user's message -------------------------------------------------------------------------


class BrokenUserRole(BrokenRunner):
    breaks = "user_message.role"

    def build_user_message(self, text: str) -> FrameworkMessage:
        return FrameworkMessage(MessageRole.SYSTEM, self.dump({"role": "user", "text": text}), text)


class BrokenUserText(BrokenRunner):
    breaks = "user_message.text"

    def build_user_message(self, text: str) -> FrameworkMessage:
        item = self.dump({"role": "user", "text": text})
        return FrameworkMessage(MessageRole.USER, item, text.strip())


class BrokenUserItem(BrokenRunner):
    breaks = "user_message.reaches_model"

    def build_user_message(self, text: str) -> FrameworkMessage:
        ascii_only = text.encode("ascii", "replace").decode()
        item = self.dump({"role": "user", "text": ascii_only})
        return FrameworkMessage(MessageRole.USER, item, text)


# --- one model Step -----------------------------------------------------------------------------


class BrokenOutcome(BrokenRunner):
    breaks = "model.outcome"

    def completed(self, turn: AgentTurnContext, items: list[Item], usage: AgentUsage) -> Any:
        return [self.stored(item) for item in items]


class BrokenCallsModelTwice(BrokenRunner):
    breaks = "model.one_call"

    async def call_model(self, turn: AgentTurnContext, given: list[Item]) -> ModelReply:
        await super().call_model(turn, given)
        return await super().call_model(turn, given)


class BrokenRunsToolsItself(BrokenRunner):
    breaks = "model.no_tool_run"

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        outcome = await super().run_model_step(turn)
        if isinstance(outcome, ToolCallsRequested):
            for call in outcome.tool_calls:
                key = json.loads(call.arguments)["key"]
                try:
                    await self.stage.run_tool(call.tool_name, key)
                except (ToolExecutionError, RuntimeError):
                    continue
        return outcome


class BrokenCountsItsCalls(BrokenRunner):
    breaks = "model.repeatable"

    def call_id(self, call: ModelToolCall) -> str:
        self.count = getattr(self, "count", 0) + 1
        return f"{super().call_id(call)}-{self.count}"


class BrokenSwallowsCancel(BrokenRunner):
    breaks = "model.cancel"

    async def call_model(self, turn: AgentTurnContext, given: list[Item]) -> ModelReply:
        try:
            return await super().call_model(turn, given)
        except asyncio.CancelledError:
            return ModelReply(text="never mind")


# --- what the model is given --------------------------------------------------------------------


class BrokenForgetsHistory(BrokenRunner):
    breaks = "history.reaches_model"

    def history(self, items: list[Item]) -> list[Item]:
        return items[-1:]


class BrokenRepeatsHistory(BrokenRunner):
    breaks = "history.no_repeats"

    async def call_model(self, turn: AgentTurnContext, given: list[Item]) -> ModelReply:
        repeated = [item for item in given if turn.is_resuming and item.get("text")]
        return await super().call_model(turn, [*given, *repeated])


class BrokenResult(BrokenRunner):
    """Tells the model nothing about calls with one status, but stores what it should."""

    status: ClassVar[ToolCallStatus]

    async def call_model(self, turn: AgentTurnContext, given: list[Item]) -> ModelReply:
        hidden = {
            record.tool_call_id
            for record in turn.tool_calls.values()
            if record.status is self.status
        }
        shown = [
            {**item, "text": "(no result)"}
            if item["role"] == "tool" and item["id"] in hidden
            else item
            for item in given
        ]
        return await super().call_model(turn, shown)


class BrokenHidesFailures(BrokenResult):
    breaks = "results.failed"
    status = ToolCallStatus.FAILED


class BrokenHidesRejections(BrokenResult):
    breaks = "results.rejected"
    status = ToolCallStatus.REJECTED


class BrokenHidesUnknownOutcomes(BrokenResult):
    breaks = "results.outcome_unknown"
    status = ToolCallStatus.OUTCOME_UNKNOWN


class BrokenHidesOutputs(BrokenResult):
    breaks = "results.succeeded"
    status = ToolCallStatus.SUCCEEDED


class BrokenFlattensOutputs(BrokenRunner):
    breaks = "results.structured"

    def parts(self, record: AgentToolCall) -> list[str]:
        return []


# --- the run state ------------------------------------------------------------------------------


class BrokenEmptyState(BrokenRunner):
    breaks = "state.not_empty"

    def dump_state(self, turn: AgentTurnContext, items: list[Item], pending: list[str]) -> str:
        return ""


class BrokenKeepsStateInMemory(BrokenRunner):
    breaks = "state.elsewhere"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.states: dict[str, Progress] = {}

    def dump_state(self, turn: AgentTurnContext, items: list[Item], pending: list[str]) -> str:
        key = f"{turn.flow_id}/{turn.turn_id}/{len(items)}"
        self.states[key] = {"items": items, "pending": pending}
        return key

    def load_state(self, turn: AgentTurnContext) -> Progress:
        if turn.framework_run_state is None:
            return super().load_state(turn)
        return self.states[turn.framework_run_state]


class BrokenStoresHistoryTwice(BrokenRunner):
    breaks = "state.small"

    def dump_state(self, turn: AgentTurnContext, items: list[Item], pending: list[str]) -> str:
        state = json.loads(super().dump_state(turn, items, pending))
        return json.dumps({**state, "history": [m.framework_item for m in turn.messages]})


class BrokenEndsAtHandoff(BrokenRunner):
    breaks = "state.continues"

    def after_handoff(
        self, turn: AgentTurnContext, items: list[Item], usage: AgentUsage
    ) -> AgentTurnOutcome:
        return self.completed(turn, items, usage)


# --- tool calls that are asked for --------------------------------------------------------------


class BrokenArguments(BrokenRunner):
    breaks = "tools.arguments"

    def defer(self, turn: AgentTurnContext, call: ModelToolCall) -> DeferredToolCall:
        deferred = super().defer(turn, call)
        upper = json.dumps({"key": call.key.upper()})
        return DeferredToolCall(
            deferred.tool_call_id, call.tool_name, upper, deferred.policy, self.needs_approval(call)
        )


class BrokenOrder(BrokenRunner):
    breaks = "tools.order"

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        outcome = await super().run_model_step(turn)
        if not isinstance(outcome, ToolCallsRequested):
            return outcome
        calls = tuple(sorted(outcome.tool_calls, key=lambda call: call.tool_call_id))
        return ToolCallsRequested(outcome.framework_run_state, calls, outcome.usage)


class BrokenIds(BrokenRunner):
    breaks = "tools.ids"

    def call_id(self, call: ModelToolCall) -> str:
        return call.tool_name


class BrokenForeignIds(BrokenRunner):
    breaks = "tools.ids.foreign"

    def call_id(self, call: ModelToolCall) -> str:
        return call.tool_call_id


class BrokenRemembersResults(BrokenRunner):
    breaks = "tools.ids.next_turn"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.known: dict[str, str] = {}

    def result_text(self, record: AgentToolCall) -> str:
        return self.known.setdefault(record.tool_call_id, super().result_text(record))


class BrokenPolicy(BrokenRunner):
    breaks = "tools.policy"

    def policy(self, turn: AgentTurnContext, call: ModelToolCall) -> ToolPolicy:
        hint = self.stage.scenario.tool(call.tool_name).effect_hint
        return ToolPolicy(hint or ToolEffect.READ)


class BrokenEffectHint(BrokenRunner):
    breaks = "tools.effect_hint"

    def policy(self, turn: AgentTurnContext, call: ModelToolCall) -> ToolPolicy:
        return turn.resolve_tool_policy(call.tool_name)


class BrokenFrameworkApproval(BrokenRunner):
    breaks = "tools.framework_approval"

    def needs_approval(self, call: ModelToolCall) -> bool | None:
        return None


# --- what a turn leaves behind ------------------------------------------------------------------


class BrokenItemForm(BrokenRunner):
    breaks = "items.json"

    def stored(self, item: Item) -> FrameworkMessage:
        message = super().stored(item)
        return FrameworkMessage(message.role, repr(item), message.text)


class BrokenLosesToolResults(BrokenRunner):
    breaks = "items.complete"

    def completed(
        self, turn: AgentTurnContext, items: list[Item], usage: AgentUsage
    ) -> AgentTurnOutcome:
        return super().completed(turn, [i for i in items if i["role"] != "tool"], usage)


class BrokenRepeatsItems(BrokenRunner):
    breaks = "items.no_repeats"

    def completed(
        self, turn: AgentTurnContext, items: list[Item], usage: AgentUsage
    ) -> AgentTurnOutcome:
        return super().completed(turn, [*items, items[-1]], usage)


class BrokenItemOrder(BrokenRunner):
    breaks = "items.order"

    def completed(
        self, turn: AgentTurnContext, items: list[Item], usage: AgentUsage
    ) -> AgentTurnOutcome:
        return super().completed(turn, sorted(items, key=lambda item: item["role"]), usage)


class BrokenRepeatsUserMessage(BrokenRunner):
    breaks = "items.after_user_message"

    def completed(
        self, turn: AgentTurnContext, items: list[Item], usage: AgentUsage
    ) -> AgentTurnOutcome:
        user = json.loads(turn.messages[-1].framework_item)
        return super().completed(turn, [user, *items], usage)


class BrokenAnswerText(BrokenRunner):
    breaks = "items.answer_text"

    def stored(self, item: Item) -> FrameworkMessage:
        message = super().stored(item)
        return FrameworkMessage(message.role, message.framework_item)


# --- usage and events ---------------------------------------------------------------------------


class BrokenUsage(BrokenRunner):
    """Reports the usage of the whole turn with every model call."""

    breaks = "usage.this_call"

    def usage(self, progress: Progress, reply: ModelReply) -> AgentUsage:
        earlier = [reply.usage for item in progress["items"] if item.get("id") and "name" in item]
        return AgentUsage.total([*earlier, reply.usage])


class BrokenStreamsLate(BrokenRunner):
    """Streams after the Step has returned, when nobody listens any more."""

    breaks = "events.text"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.late: list[asyncio.Handle] = []

    def stream(self, turn: AgentTurnContext, reply: ModelReply) -> None:
        loop = asyncio.get_running_loop()
        self.late.append(loop.call_soon(turn.events.write_text_delta, reply.text))


# --- failures of the model ----------------------------------------------------------------------


class BrokenHidesModelFailure(BrokenRunner):
    breaks = "failures.raised"

    def fail(self, turn: AgentTurnContext, failure: ModelFailure) -> AgentTurnOutcome:
        if failure.is_final:
            return super().fail(turn, failure)
        item = {"role": "assistant", "text": "Sorry, something went wrong."}
        return TurnCompleted((self.stored(item),))


class BrokenEveryFailureIsFinal(BrokenRunner):
    breaks = "failures.repeatable"

    def fail(self, turn: AgentTurnContext, failure: ModelFailure) -> AgentTurnOutcome:
        raise TurnFailedError(failure.message)


class BrokenNoFailureIsFinal(BrokenRunner):
    breaks = "failures.final"

    def fail(self, turn: AgentTurnContext, failure: ModelFailure) -> AgentTurnOutcome:
        raise ModelError(failure.message, retry_after=failure.retry_after)


class BrokenRetryAfter(BrokenRunner):
    breaks = "failures.retry_after"

    def fail(self, turn: AgentTurnContext, failure: ModelFailure) -> AgentTurnOutcome:
        if failure.is_final:
            return super().fail(turn, failure)
        raise ModelError(failure.message)


class BrokenStaysFailed(BrokenRunner):
    breaks = "failures.next_attempt"

    async def call_model(self, turn: AgentTurnContext, given: list[Item]) -> ModelReply:
        failed = getattr(self, "failed", None)
        if failed is not None:
            return failed
        reply = await super().call_model(turn, given)
        if reply.failure is not None:
            self.failed = reply
        return reply


# --- one tool Step ------------------------------------------------------------------------------


class BrokenRunsToolTwice(BrokenRunner):
    breaks = "tool_step.runs_once"

    async def run_tool(self, name: str, key: str, call: DeferredToolExecution) -> str:
        await super().run_tool(name, key, call)
        return await super().run_tool(name, key, call)


class BrokenAsksModelInToolStep(BrokenRunner):
    breaks = "tool_step.no_model_call"

    async def run_tool(self, name: str, key: str, call: DeferredToolExecution) -> str:
        await self.stage.call_model()
        return await super().run_tool(name, key, call)


class BrokenOutput(BrokenRunner):
    breaks = "tool_step.output"

    async def run_tool(self, name: str, key: str, call: DeferredToolExecution) -> str:
        return (await super().run_tool(name, key, call)).strip()


class BrokenErrorIsOutput(BrokenRunner):
    breaks = "tool_step.error_for_model"

    async def run_tool(self, name: str, key: str, call: DeferredToolExecution) -> str:
        try:
            return await super().run_tool(name, key, call)
        except ToolExecutionError as error:
            return f"error: {error}"


class BrokenEveryErrorIsForTheModel(BrokenRunner):
    breaks = "tool_step.other_error"

    async def run_tool(self, name: str, key: str, call: DeferredToolExecution) -> str:
        try:
            return await super().run_tool(name, key, call)
        except RuntimeError as error:
            raise ToolExecutionError(str(error)) from error


class BrokenSharesTheCall(BrokenRunner):
    breaks = "tool_step.concurrent"

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        self.arguments = json.loads(call.tool_call.arguments)
        await asyncio.sleep(0)
        key = self.arguments["key"]
        return self.result(call, await self.run_tool(call.tool_call.tool_name, key, call))


class BrokenIdempotencyKey(BrokenRunner):
    """Makes up a key for every attempt."""

    breaks = "tool_step.idempotency_key"

    async def run_tool(self, name: str, key: str, call: DeferredToolExecution) -> str:
        return await self.stage.run_tool(name, key, f"{call.idempotency_key}/{call.attempt}")


# --- in a session -------------------------------------------------------------------------------


class BrokenBloatedItems(BrokenRunner):
    """Leaves items behind that no engine takes."""

    breaks = "session.turn"

    def stored(self, item: Item) -> FrameworkMessage:
        is_last_result = item.get("text") == NOTE.output
        return super().stored({**item, "padding": _PADDING} if is_last_result else item)


# Random, since long items are stored compressed.
_PADDING = base64.b64encode(random.Random(3).randbytes(1_000_000)).decode()

BROKEN: tuple[type[BrokenRunner], ...] = tuple(
    cast("type[BrokenRunner]", value)
    for name, value in list(globals().items())
    if name.startswith("Broken") and hasattr(value, "breaks")
)
