"""One model Step: rebuild the run, let the framework make one model call, tell what it wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from agents import (
    Agent,
    FunctionTool,
    ModelResponse,
    RunContextWrapper,
    Runner,
    RunResultStreaming,
    RunState,
    StreamEvent,
    ToolApprovalItem,
)

from dex_agents import (
    AgentToolCall,
    AgentTurnContext,
    AgentTurnOutcome,
    AgentUsage,
    DeferredToolCall,
    ToolCallsRequested,
    ToolCallStatus,
    TurnCompleted,
    TurnContinues,
    TurnFailedError,
    describe_tool_call_outcome,
)
from dex_agents_openai_agents import _sdk_internals as sdk
from dex_agents_openai_agents.call_ids import call_ids_of, to_session_call_id
from dex_agents_openai_agents.errors import ModelCallLog, classify_model_step_error
from dex_agents_openai_agents.gate import GateScope, gate_scope
from dex_agents_openai_agents.graph import AgentGraph, GraphAgent
from dex_agents_openai_agents.history import (
    History,
    InputItem,
    content_text,
    framework_messages,
    input_items,
)
from dex_agents_openai_agents.model_tap import observing
from dex_agents_openai_agents.policies import framework_effect
from dex_agents_openai_agents.run_state import StoredRun, capture, decode_run, encode_run, snapshot
from dex_agents_openai_agents.settings import RunnerSettings
from dex_agents_openai_agents.step_hooks import ModelStepHooks
from dex_agents_openai_agents.streaming import DeltaForwarder
from dex_agents_openai_agents.tool_results import (
    CallOrigin,
    decode_result,
    is_replaced,
    model_output,
    withheld_by,
)
from dex_agents_openai_agents.usage import UsageMark, usage_since


@dataclass(frozen=True)
class _Source:
    """What a Step gives to the framework.

    Attributes:
        start: Agent the framework's run starts with.
        run_input: Items for a fresh run, or a restored state.
        original_input: The conversation and the replayed items, as the run sees them.
        replayed: Items of this turn among the input of the run.
        earlier_turns: Model calls of this turn that the run does not count itself.
        max_turns: Limit for the run; a restored state brings its own.
    """

    start: GraphAgent
    run_input: list[InputItem] | RunState[Any, Agent[Any]]
    original_input: list[InputItem]
    replayed: tuple[InputItem, ...]
    earlier_turns: int
    max_turns: int | None


class ModelStep:
    """One attempt of one model Step.

    Args:
        settings: Of the runner.
        graph: Of the runner.
        turn: From the session.
    """

    def __init__(self, settings: RunnerSettings, graph: AgentGraph, turn: AgentTurnContext) -> None:
        self._settings = settings
        self._graph = graph
        self._turn = turn
        self._scope = GateScope(is_restoring=turn.is_resuming)
        self._call = ModelCallLog()
        self._deltas = DeltaForwarder(turn.events)
        self._result: RunResultStreaming | None = None

    async def run(self) -> AgentTurnOutcome:
        """Make the model call.

        Raises:
            TurnFailedError: The turn cannot succeed.
            ModelError: Another attempt may help.
            Exception: Anything the application's own code raised.
        """
        try:
            return await self._run()
        except Exception as error:
            classified = classify_model_step_error(error, self._call)
            if classified is error:
                raise
            raise classified from error

    async def _run(self) -> AgentTurnOutcome:
        self._refuse_withheld_output()
        turn = self._turn
        context = RunContextWrapper[Any](
            await self._settings.context.build(turn.flow_id, turn.turn_id)
        )
        history = History(turn.messages)
        with gate_scope(self._scope), observing(self):
            source = (
                self._begin(history)
                if turn.framework_run_state is None
                else await self._resume(history, turn.framework_run_state, context)
            )
            before = UsageMark.of(context.usage)
            result, responses_before = await self._stream(source, context)
            responses = result.raw_responses[responses_before:]
            self._deltas.finish(_answer(responses))
            usage = usage_since(before, context.usage, len(responses))
            if not result.interruptions and result.final_output is not None:
                return self._completed(source, result, usage)
            state = snapshot(result)
            if result.interruptions:
                calls = await self._deferred_calls(result)
                return ToolCallsRequested(self._stored(source, result, state), calls, usage)
            if sdk.needs_another_model_call(state):
                return TurnContinues(self._stored(source, result, state), usage)
            return self._completed(source, result, usage)

    # --- before the model call --------------------------------------------------------------

    def _refuse_withheld_output(self) -> None:
        for record in self._turn.tool_calls.values():
            guardrail = withheld_by(record)
            if guardrail is not None:
                raise TurnFailedError(
                    f"the tool output guardrail {guardrail!r} refused the output of "
                    f"{record.tool_name!r}; the tool has run",
                    "ToolOutputGuardrailTripwireTriggered",
                )

    def _begin(self, history: History) -> _Source:
        name = history.next_agent if self._settings.next_turn_agent == "last" else None
        # An agent that a deploy removed cannot go on; the first agent takes the message then.
        start = self._graph.agents.get(name or self._graph.start)
        items = history.render(())
        return _Source(
            start=start or self._graph.agents[self._graph.start],
            run_input=items,
            original_input=items,
            replayed=(),
            earlier_turns=0,
            max_turns=self._settings.max_turns,
        )

    async def _resume(
        self, history: History, framework_run_state: str, context: RunContextWrapper[Any]
    ) -> _Source:
        stored = decode_run(framework_run_state, self._turn.tool_calls)
        turn_call_ids = call_ids_of(stored.items)
        self._call.used_call_ids = turn_call_ids
        items = history.render(turn_call_ids)
        if not stored.is_readable:
            return self._replay(stored, items)
        start = self._agent(stored.start_agent)
        self._agent(stored.current_agent)
        self._require_called_tools(stored)
        replayed = stored.items[: stored.replayed]
        original_input = [*items, *replayed]
        state = await stored.restore(start.gated, original_input, context)
        self._settle(state.get_interruptions(), context)
        return _Source(
            start=start,
            run_input=state,
            original_input=original_input,
            replayed=replayed,
            earlier_turns=stored.model_turns - stored.state[sdk.STATE_CURRENT_TURN],
            max_turns=self._settings.max_turns,
        )

    def _replay(self, stored: StoredRun, history: list[InputItem]) -> _Source:
        """Go on with a state of another framework version: as a fresh run over the turn's items."""
        outputs = {
            call_id: record
            for call_id in stored.unanswered_call_ids()
            if (record := self._record(call_id)) is not None
        }
        # A handoff that waited beside a tool call is forgotten: its call has no output.
        forgotten = set(stored.unanswered_call_ids()) - set(outputs)
        replayed = (
            *(item for item in stored.items if item.get("call_id") not in forgotten),
            *(
                {"type": "function_call_output", "call_id": call_id, "output": model_output(record)}
                for call_id, record in outputs.items()
            ),
        )
        limit = self._settings.max_turns
        items = [*history, *replayed]
        return _Source(
            start=self._agent(stored.current_agent),
            run_input=items,
            original_input=items,
            replayed=replayed,
            earlier_turns=stored.model_turns,
            max_turns=None if limit is None else limit - stored.model_turns,
        )

    def _agent(self, name: str) -> GraphAgent:
        entry = self._graph.agents.get(name)
        if entry is None:
            raise TurnFailedError(
                f"agent {name!r} runs this turn but is no longer part of the agent graph, which "
                f"has: {', '.join(sorted(self._graph.agents))}",
                "AgentMissing",
            )
        return entry

    def _require_called_tools(self, stored: StoredRun) -> None:
        for call_id in stored.unanswered_call_ids():
            record = self._record(call_id)
            origin = CallOrigin.of(record) if record is not None else None
            if record is None or origin is None:
                continue
            owner = self._agent(origin.agent_name)
            if record.tool_name not in owner.tools and not owner.lists_tools_at_run_time:
                raise TurnFailedError(
                    f"tool {record.tool_name!r} was called in this turn but is no longer a tool of "
                    f"agent {origin.agent_name!r}; the call is {record.status}",
                    "ToolMissing",
                )

    def _record(self, call_id: str) -> AgentToolCall | None:
        return self._turn.recorded_tool_call(to_session_call_id(call_id))

    def _settle(self, pending: list[ToolApprovalItem], context: RunContextWrapper[Any]) -> None:
        """Decide every pending call by its record.

        The decisions go to the context itself: `RunState.approve` compares each call with all
        others, which takes seconds for 80 parallel calls.
        """
        results: dict[str, object] = {}
        for item in pending:
            call_id = item.call_id or ""
            record = self._record(call_id)
            if record is None or not record.status.is_final:
                raise TurnFailedError(
                    f"the tool call {call_id!r} has no final result, so the turn cannot go on",
                    "ToolResultMissing",
                )
            if record.status is ToolCallStatus.SUCCEEDED and not is_replaced(record):
                owner = self._agent(item.agent.name)
                tool = self._scope.listed.get((item.agent.name, item.qualified_name or ""))
                results[call_id] = decode_result(record, owner.original, tool)
                context.approve_tool(item)
            elif record.status is ToolCallStatus.REJECTED:
                context.reject_tool(item, rejection_message=record.rejection_message)
            else:
                # A rejection carries any text to the model, also past a declared output type.
                context.reject_tool(item, rejection_message=describe_tool_call_outcome(record))
        self._scope.results = results

    # --- the model call ---------------------------------------------------------------------

    async def _stream(
        self, source: _Source, context: RunContextWrapper[Any]
    ) -> tuple[RunResultStreaming, int]:
        """Run until the framework stops; return the result and the responses it had before."""
        settings, turn = self._settings, self._turn
        result = Runner.run_streamed(
            source.start.gated,
            cast(Any, source.run_input),
            context=cast(Any, context),
            max_turns=source.max_turns,
            hooks=ModelStepHooks(settings.hooks, self._scope),
            run_config=settings.model_run_config(turn.flow_id, turn.turn_id),
            error_handlers=settings.error_handlers,
        )
        self._result = result
        responses_before = len(result.raw_responses)
        try:
            events = cast(AsyncGenerator[StreamEvent], result.stream_events())
            async with aclosing(events):
                async for event in events:
                    if event.type == "raw_response_event":
                        # For a model that a callback put in place of the tapped one.
                        self._stop_after_this_call()
        except BaseException:
            # Leaving the loop does not end the run; nobody else would.
            result.cancel()
            if result.run_loop_task is not None:
                await asyncio.wait([result.run_loop_task])
            raise
        return result, responses_before

    def call_started(self) -> None:
        """See `ModelObserver`: the call is under way, so the run ends with it."""
        self._call.has_started = True
        self._stop_after_this_call()

    def event_received(self, event: Any) -> None:
        """See `ModelObserver`."""
        self._call.note_event(event)
        self._deltas.forward(event)

    def _stop_after_this_call(self) -> None:
        # Set any earlier, it would end the run before the call, in a state that cannot go on.
        if self._result is not None:
            self._result.cancel(mode="after_turn")

    # --- after the model call ---------------------------------------------------------------

    async def _deferred_calls(self, result: RunResultStreaming) -> tuple[DeferredToolCall, ...]:
        order = {
            getattr(output, "call_id", None): position
            for position, output in enumerate(result.raw_responses[-1].output)
        }
        # The framework lists pending calls by kind of tool, the session wants model order.
        pending = sorted(result.interruptions, key=lambda item: order.get(item.call_id, len(order)))
        return tuple([await self._deferred_call(result, item) for item in pending])

    async def _deferred_call(
        self, result: RunResultStreaming, item: ToolApprovalItem
    ) -> DeferredToolCall:
        call_id = item.call_id or ""
        name = item.qualified_name or item.tool_name or ""
        tool = self._scope.listed.get((item.agent.name, name))
        if tool is None:
            raise TurnFailedError(
                f"the call of {name!r} by agent {item.agent.name!r} waits for an approval that a "
                "session cannot give: only function tools run as Steps",
                "ApprovalNotSupported",
            )
        arguments = item.arguments or ""
        return DeferredToolCall(
            tool_call_id=to_session_call_id(call_id),
            tool_name=name,
            arguments=arguments,
            policy=self._turn.resolve_tool_policy(
                name, framework_effect(tool) if self._settings.trust_mcp_hints else None
            ),
            requires_approval=await self._needs_approval(result, tool, arguments, call_id) or None,
            framework_payload=CallOrigin(item.agent.name, tool.name, item.tool_namespace).encode(),
        )

    async def _needs_approval(
        self, result: RunResultStreaming, tool: FunctionTool, arguments: str, call_id: str
    ) -> bool:
        try:
            return await sdk.needs_approval(tool, result.context_wrapper, arguments, call_id)
        except Exception:
            # The call is paid for and the rule is broken: a person decides.
            return True

    def _items(self, source: _Source, result: RunResultStreaming) -> list[InputItem]:
        return [
            *source.replayed,
            *input_items(result.new_items, omit_reasoning_ids=self._settings.omit_reasoning_ids),
        ]

    def _stored(self, source: _Source, result: RunResultStreaming, state: dict[str, Any]) -> str:
        run = capture(
            state,
            start=source.start.gated,
            history=source.original_input,
            current_agent=result.last_agent.name,
            model_turns=source.earlier_turns + result.current_turn,
            items=self._items(source, result),
            replayed=len(source.replayed),
        )
        return encode_run(run, self._turn.tool_calls)

    def _completed(
        self, source: _Source, result: RunResultStreaming, usage: AgentUsage
    ) -> TurnCompleted:
        messages = framework_messages(
            source.replayed,
            result.new_items,
            last_agent=result.last_agent.name,
            omit_reasoning_ids=self._settings.omit_reasoning_ids,
        )
        return TurnCompleted(messages, usage)


def _answer(responses: Sequence[ModelResponse]) -> str:
    return "\n".join(
        content_text(output.model_dump().get("content"))
        for response in responses
        for output in response.output
        if output.type == "message"
    )
