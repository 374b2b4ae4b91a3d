"""`RunModel`: one model call, and what follows from its outcome."""

from __future__ import annotations

import asyncio
import time

from dex import AsyncContext, StepDecision, go_to_many

from dex_agents._internal_values import AgentSessionIndex, ModelStepBudget
from dex_agents._session.cache import PIN_SECONDS
from dex_agents._session.failures import (
    FailTurn,
    ModelRetryWindow,
    judge_model_error,
    turn_failure,
)
from dex_agents._session.history import (
    add_tool_calls,
    count_usage,
    may_hop,
    next_budget,
    without_turn,
)
from dex_agents._session.turns import (
    check_run_state,
    check_usage,
    complete_turn,
    continue_turn,
    defer_tool_calls,
    running_turn_id,
    uncounted_usage,
)
from dex_agents.errors import ModelError, RunnerContractError, TurnFailedError
from dex_agents.events import AgentEventWriter
from dex_agents.persistence import (
    AGENT_INDEX,
    AGENT_TOOL_CALLS,
    FRAMEWORK_RUN_STATE,
    MODEL_STEP_BUDGET,
    PENDING_TURN_FAILURE,
)
from dex_agents.runner import (
    AgentTurnContext,
    AgentTurnOutcome,
    ToolCallsRequested,
    TurnCompleted,
    TurnContinues,
)
from dex_agents.session_flow._guard import (
    RetryLaterError,
    StepFailedError,
    guarded,
    is_being_cancelled,
)
from dex_agents.session_flow._heartbeat import heartbeat_interval, keep_alive
from dex_agents.session_flow._history_cache import (
    TurnHistory,
    plan_model_loads,
    take_in_history,
)
from dex_agents.session_flow._runtime import SessionStep, utc_now
from dex_agents.session_flow._storing import (
    add_usage,
    append_messages,
    clear_turn,
    drop_budget,
    session_index,
    session_state,
    store_interrupts,
    store_state,
    stored,
)
from dex_agents.values import AgentEventType, AgentState, AgentUsage, PendingTurnFailure


class RunModel(SessionStep[None]):
    """Makes one model call and stores what it asks for.

    All decisions are made before the first write, since the writes of a handler that then returns
    a decision are committed whatever it was about to do.
    """

    @guarded
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        """Call the model, or first load more of the history."""
        state, index = session_state(context), session_index(context)
        budget = stored(context, MODEL_STEP_BUDGET)
        try:
            history = take_in_history(self.session, context, state, index)
            if not history.is_complete:
                return self._load_more(context, state, index, budget)
            outcome = await self._call_runner(context, state, history, budget)
            return self._apply(context, state, index, history, outcome)
        except (TurnFailedError, RunnerContractError, ModelError) as error:
            judged = judge_model_error(error, self._window(context, budget))
        if isinstance(judged, FailTurn):
            return self._fail_turn(context, index, judged.failure)
        if judged.delay is not None:
            raise RetryLaterError(judged.text, judged.delay)
        raise StepFailedError(judged.text)

    async def _call_runner(
        self,
        context: AsyncContext,
        state: AgentState,
        history: TurnHistory,
        budget: ModelStepBudget | None,
    ) -> AgentTurnOutcome:
        session = self.session
        turn_name = running_turn_id(state)
        with session.event_writer(context, turn_name) as events:
            turn = AgentTurnContext(
                flow_id=context.flow_id,
                turn_id=turn_name,
                attempt=context.attempt + (0 if budget is None else budget.attempts_used),
                messages=history.messages,
                framework_run_state=stored(context, FRAMEWORK_RUN_STATE),
                tool_calls=history.tool_calls,
                events=events,
                heartbeat=context.heartbeat,
                tool_policies=session.options.tool_policies,
                default_tool_effect=session.options.default_tool_effect,
            )
            what = f"the model call of {turn_name} in session {context.flow_id!r}"
            interval = heartbeat_interval(session.options.model_limits)
            async with keep_alive(context, what, session.watch, interval):
                try:
                    return await session.runner.run_model_step(turn)
                except asyncio.CancelledError:
                    if is_being_cancelled():
                        raise
                    raise ModelError(
                        "the model call was cancelled from inside", "CancelledError"
                    ) from None

    def _window(self, context: AsyncContext, budget: ModelStepBudget | None) -> ModelRetryWindow:
        limits = self.session.options.model_limits
        used = context.attempt + (0 if budget is None else budget.attempts_used)
        return ModelRetryWindow(
            utc_now(),
            context.first_attempt_at if budget is None else budget.first_attempt_at,
            limits.total_duration,
            limits.max_attempts - used,
        )

    # --- what follows ---------------------------------------------------------------------------

    def _apply(
        self,
        context: AsyncContext,
        state: AgentState,
        index: AgentSessionIndex,
        history: TurnHistory,
        outcome: object,
    ) -> StepDecision:
        if not isinstance(outcome, TurnCompleted | ToolCallsRequested | TurnContinues):
            raise RunnerContractError(
                f"run_model_step returned {type(outcome).__name__}; return TurnCompleted, "
                "ToolCallsRequested or TurnContinues"
            )
        usage = check_usage(outcome) + uncounted_usage(
            history.tool_calls.values(), index.counted_tool_calls
        )
        with self.session.event_writer(context, running_turn_id(state)) as events:
            if isinstance(outcome, TurnCompleted):
                return self._complete(context, state, index, outcome, usage, events)
            if isinstance(outcome, ToolCallsRequested):
                return self._defer(context, state, index, outcome, usage, events)
            return self._continue(context, state, index, outcome, usage, events)

    def _complete(
        self,
        context: AsyncContext,
        state: AgentState,
        index: AgentSessionIndex,
        outcome: TurnCompleted,
        usage: AgentUsage,
        events: AgentEventWriter,
    ) -> StepDecision:
        ended = complete_turn(state, outcome, utc_now())
        AGENT_INDEX.set(context, without_turn(append_messages(context, index, ended.messages)))
        clear_turn(context, index)
        store_state(context, ended.state)
        _record_usage(context, usage, events)
        return go_to_many(self.session.movements.await_user_message(ended.state))

    def _defer(
        self,
        context: AsyncContext,
        state: AgentState,
        index: AgentSessionIndex,
        outcome: ToolCallsRequested,
        usage: AgentUsage,
        events: AgentEventWriter,
    ) -> StepDecision:
        run_state = check_run_state(outcome.framework_run_state)
        known = [entry.tool_call_id for entry in index.tool_calls]
        deadline = self.session.options.interrupt_deadline
        deferred = defer_tool_calls(state, outcome, known, utc_now(), deadline)
        records = deferred.records
        index = add_tool_calls(count_usage(index), records, deferred.record_bytes)
        FRAMEWORK_RUN_STATE.set(context, run_state)
        for record in records:
            AGENT_TOOL_CALLS.set(context, record.tool_call_id, record)
            events.write_event(
                AgentEventType.TOOL_CALL_DEFERRED,
                {
                    "tool_call_id": record.tool_call_id,
                    "tool_name": record.tool_name,
                    "effect": record.effect.value,
                    "requires_approval": record.requires_approval,
                },
            )
        if deferred.interrupts:
            store_interrupts(context, deferred.interrupts)
        AGENT_INDEX.set(context, index)
        drop_budget(context)
        store_state(context, deferred.state)
        _record_usage(context, usage, events)
        movements = self.session.movements
        return go_to_many(
            *(movements.tool_call(record) for record in records),
            movements.resume_turn(index, len(records)),
        )

    def _continue(
        self,
        context: AsyncContext,
        state: AgentState,
        index: AgentSessionIndex,
        outcome: TurnContinues,
        usage: AgentUsage,
        events: AgentEventWriter,
    ) -> StepDecision:
        FRAMEWORK_RUN_STATE.set(context, check_run_state(outcome.framework_run_state))
        index = count_usage(index)
        AGENT_INDEX.set(context, index)
        drop_budget(context)
        state = continue_turn(state)
        store_state(context, state)
        _record_usage(context, usage, events)
        loads = plan_model_loads(self.session, context, state, index)
        return go_to_many(self.session.movements.run_model(index, loads))

    def _fail_turn(
        self, context: AsyncContext, index: AgentSessionIndex, failure: PendingTurnFailure
    ) -> StepDecision:
        PENDING_TURN_FAILURE.set(context, failure)
        return go_to_many(self.session.movements.record_turn_failure(index))

    def _load_more(
        self,
        context: AsyncContext,
        state: AgentState,
        index: AgentSessionIndex,
        previous: ModelStepBudget | None,
    ) -> StepDecision:
        """Hand the Step on to itself with the next part of the history; no model call is made."""
        loads = plan_model_loads(self.session, context, state, index, for_any_worker=True)
        budget = next_budget(
            previous, context.attempt, context.first_attempt_at, loads.ranges, not loads.blocks
        )
        now = utc_now()
        limits = self.session.options.model_limits
        if not may_hop(budget, loads.ranges):
            failure = turn_failure(
                "HistoryNotLoaded",
                f"the history could not be loaded in {budget.hops - 1} tasks; it moved between "
                "workers that each lacked a part of it",
            )
            return self._fail_turn(context, index, failure)
        if now >= budget.first_attempt_at + limits.total_duration:
            failure = turn_failure(
                "HistoryNotLoaded", "the time for the model call was over before it could be made"
            )
            return self._fail_turn(context, index, failure)
        cached = self.session.cache.session(context.flow_id, context.run_id)
        cached.pinned_until = time.monotonic() + PIN_SECONDS
        MODEL_STEP_BUDGET.set(context, budget)
        return go_to_many(self.session.movements.run_model(index, loads, budget, now))


def _record_usage(context: AsyncContext, usage: AgentUsage, events: AgentEventWriter) -> None:
    total = add_usage(context, usage)
    events.write_event(
        AgentEventType.USAGE_RECORDED,
        {"recorded": _usage_payload(usage), "session": _usage_payload(total)},
    )


def _usage_payload(usage: AgentUsage) -> dict[str, object]:
    return {
        "model_calls": usage.model_calls,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }
