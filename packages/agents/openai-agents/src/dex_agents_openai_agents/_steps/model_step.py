"""One model Step: rebuild the run, let the framework make one model call, tell what it wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from agents import (
    Agent,
    ModelBehaviorError,
    ModelResponse,
    RunContextWrapper,
    RunItem,
    Runner,
    RunResultStreaming,
    RunState,
    StreamEvent,
)

from dex_agents import (
    AgentTurnContext,
    AgentTurnOutcome,
    AgentUsage,
    ToolCallsRequested,
    TurnCompleted,
    TurnContinues,
)
from dex_agents_openai_agents import _sdk_internals as sdk
from dex_agents_openai_agents._graph.graph import AgentGraph, GraphAgent
from dex_agents_openai_agents._graph.hooks import ModelStepHooks
from dex_agents_openai_agents._model.errors import classify_model_step_error
from dex_agents_openai_agents._model.model_tap import observing
from dex_agents_openai_agents._model.streaming import DeltaForwarder
from dex_agents_openai_agents._steps.pending_calls import PendingCalls
from dex_agents_openai_agents._steps.runner_settings import RunnerSettings
from dex_agents_openai_agents._steps.usage import UsageMark, usage_since
from dex_agents_openai_agents._stored.call_ids import call_ids_of
from dex_agents_openai_agents._stored.history import (
    History,
    InputItem,
    content_text,
    framework_messages,
    input_items,
)
from dex_agents_openai_agents._stored.run_state import (
    StoredRun,
    capture,
    decode_run,
    encode_run,
    snapshot,
)
from dex_agents_openai_agents._tools.gate_scope import GateScope, gate_scope
from dex_agents_openai_agents._tools.resumed_response import (
    ItemKey,
    ResumedResponse,
    item_key,
)


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
        left_out: Places of the run's items that handoff filters took out before.
        before: Items that the run has before this Step.
    """

    start: GraphAgent
    run_input: list[InputItem] | RunState[Any, Agent[Any]]
    original_input: list[InputItem]
    replayed: tuple[InputItem, ...]
    earlier_turns: int
    max_turns: int | None
    left_out: tuple[int, ...] = ()
    before: tuple[ItemKey, ...] = ()


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
        self._scope = GateScope(
            is_restoring=turn.is_resuming, allows_at_least_once=graph.allows_at_least_once
        )
        self._pending = PendingCalls(settings, graph, turn, self._scope)
        self._call = self._scope.call
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
        self._pending.refuse_withheld_output()
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
            usage = usage_since(before, context.usage, max(len(responses), self._call.has_started))
            if not result.interruptions and result.final_output is not None:
                return self._completed(source, result, usage)
            calls = await self._pending.defer(result) if result.interruptions else ()
            state = snapshot(result)
            if calls:
                return ToolCallsRequested(self._stored(source, result, state), calls, usage)
            if result.interruptions or sdk.needs_another_model_call(state):
                return TurnContinues(self._stored(source, result, state), usage)
            return self._completed(source, result, usage)

    # --- before the model call --------------------------------------------------------------

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
        start = self._graph.require(stored.start_agent)
        self._graph.require(stored.current_agent)
        self._pending.require_tools(stored)
        replayed = stored.items[: stored.replayed]
        original_input = [*items, *replayed]
        state = await stored.restore(start.gated, original_input, context)
        self._pending.settle(state, context)
        self._scope.resumed_response = ResumedResponse(
            [item_key(item) for item in sdk.response_items(stored.state)]
        )
        return _Source(
            start=start,
            run_input=state,
            original_input=original_input,
            replayed=replayed,
            earlier_turns=stored.model_turns - stored.state[sdk.STATE_CURRENT_TURN],
            max_turns=self._settings.max_turns,
            left_out=stored.left_out,
            before=tuple(item_key(item) for item in sdk.turn_items(stored.state)),
        )

    def _replay(self, stored: StoredRun, history: list[InputItem]) -> _Source:
        """Go on with a state of another framework version: as a fresh run over the turn's items."""
        outputs = self._pending.replayed_outputs(stored)
        answered = {item.get("call_id") or item.get("approval_request_id") for item in outputs}
        # A handoff that waited beside a tool call is forgotten: its call has no output. A program
        # has its output later.
        forgotten = [
            item
            for call_id, item in stored.unanswered_calls()
            if call_id not in answered and item.get("type") != "program"
        ]
        replayed = (*(item for item in stored.items if item not in forgotten), *outputs)
        limit = self._settings.max_turns
        items = [*history, *replayed]
        return _Source(
            start=self._graph.require(stored.current_agent),
            run_input=items,
            original_input=items,
            replayed=replayed,
            earlier_turns=stored.model_turns,
            max_turns=None if limit is None else limit - stored.model_turns,
        )

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
            hooks=ModelStepHooks(settings.hooks),
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

    def response_refused(self, error: ModelBehaviorError) -> None:
        """See `ModelObserver`."""
        self._call.note_refused_response(error)

    def _stop_after_this_call(self) -> None:
        # Set any earlier, it would end the run before the call, in a state that looks finished.
        if self._result is not None:
            self._result.cancel(mode="after_turn")

    # --- after the model call ---------------------------------------------------------------

    def _left_out(self, source: _Source) -> tuple[int, ...]:
        resumed = self._scope.resumed_response
        now = () if resumed is None else resumed.places_left_out(source.before)
        return (*source.left_out, *now)

    def _new_items(self, source: _Source, result: RunResultStreaming) -> list[RunItem]:
        left_out = {*self._left_out(source)}
        return [item for place, item in enumerate(result.new_items) if place not in left_out]

    def _items(self, source: _Source, result: RunResultStreaming) -> list[InputItem]:
        return [
            *source.replayed,
            *input_items(
                self._new_items(source, result),
                omit_reasoning_ids=self._settings.omit_reasoning_ids,
            ),
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
            left_out=self._left_out(source),
        )
        return encode_run(run, self._turn.tool_calls)

    def _completed(
        self, source: _Source, result: RunResultStreaming, usage: AgentUsage
    ) -> TurnCompleted:
        messages = framework_messages(
            source.replayed,
            self._new_items(source, result),
            last_agent=result.last_agent.name,
            final_output=result.final_output,
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
