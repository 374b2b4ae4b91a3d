"""Steps around one tool call: approval, the call itself, and the record of a lost one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Final

from dex import (
    AsyncContext,
    Context,
    StepDecision,
    Timer,
    ValueMappingError,
    Wait,
    dead_end,
    go_to_many,
)

from dex_agents._session.approvals import (
    ApprovalResult,
    decide_approval,
    find_interrupt,
    timer_until,
    without_interrupt,
)
from dex_agents._session.history import finish_tool_calls, round_ids
from dex_agents._session.ids import idempotency_key, interrupt_id
from dex_agents._session.tools import (
    FinalCall,
    finish_after_crash,
    finish_with_error,
    finish_with_result,
    finish_with_unknown_outcome,
)
from dex_agents._session.turns import continue_turn, running_turn_id, unfinished_calls
from dex_agents.errors import DexAgentsError, ToolExecutionError
from dex_agents.events import AgentEventWriter
from dex_agents.persistence import (
    AGENT_INDEX,
    AGENT_TOOL_CALLS,
    AGENT_TOOL_OUTPUTS,
    INTERRUPT_RESOLUTIONS,
    PENDING_INTERRUPTS,
    TOOL_CALL_RESULTS,
)
from dex_agents.runner import DeferredToolExecution
from dex_agents.session_flow._guard import (
    StepFailedError,
    guarded,
    guarded_sync,
    is_being_cancelled,
)
from dex_agents.session_flow._heartbeat import heartbeat_interval, keep_alive
from dex_agents.session_flow._history_cache import plan_model_loads
from dex_agents.session_flow._runtime import SessionStep, utc_now
from dex_agents.session_flow._storing import (
    session_index,
    session_state,
    store_interrupts,
    store_state,
    stored,
    stored_entry,
)
from dex_agents.values import (
    AgentEventType,
    AgentInterrupt,
    AgentToolCall,
    ToolCallCompleted,
    ToolCallStatus,
)

_LOG = logging.getLogger("dex_agents")

#: Turns of the event loop in which the worker hands queued frames to the transport.
_SEND_TURNS: Final = 10


def _record(context: Context, tool_call_id: str) -> AgentToolCall:
    record = stored_entry(context, AGENT_TOOL_CALLS, tool_call_id)
    if record is None:
        raise DexAgentsError(f"the record of tool call {tool_call_id!r} is gone")
    return record


def _readable_records(context: Context, tool_call_ids: Iterable[str]) -> Iterator[AgentToolCall]:
    for tool_call_id in tool_call_ids:
        with contextlib.suppress(ValueMappingError):
            yield _record(context, tool_call_id)


def _give_up_unreadable(context: Context, tool_call_id: str) -> StepDecision:
    """Tell the waiting turn about a call whose record this release cannot read.

    The record stays as it is. The model Step that follows fails the turn with words.
    """
    turn = running_turn_id(session_state(context))
    TOOL_CALL_RESULTS.publish(context, ToolCallCompleted(tool_call_id, turn))
    _LOG.warning(
        "the record of tool call %r in session %r cannot be read by this release; its turn fails",
        tool_call_id,
        context.flow_id,
    )
    return dead_end()


def _finish(context: Context, final: FinalCall, events: AgentEventWriter) -> StepDecision:
    """Store a final record and tell the waiting turn, in one commit. Exactly once per call."""
    record = final.record
    AGENT_TOOL_CALLS.set(context, record.tool_call_id, record)
    if final.output is not None:
        AGENT_TOOL_OUTPUTS.set(context, record.tool_call_id, final.output)
    TOOL_CALL_RESULTS.publish(context, final.completed())
    events.write_tool_call_finished(record.tool_call_id, record.tool_name, record.status.value)
    return dead_end()


class AwaitToolApproval(SessionStep[str]):
    """Waits for a person's answer to one tool call, or for the deadline."""

    @guarded_sync
    def wait_for(self, context: Context, input: str) -> Wait:
        """Tell that the question can be answered now, and wait."""
        wanted = interrupt_id(running_turn_id(session_state(context)), input)
        answered = INTERRUPT_RESOLUTIONS.for_one(wanted)
        interrupt = find_interrupt(stored(context, PENDING_INTERRUPTS) or (), wanted)
        if interrupt is None:
            return Wait.until(answered)
        if not context.from_step_execution_id.startswith("AwaitToolApproval-"):
            self._tell_raised(context, interrupt)
        if interrupt.deadline is None:
            return Wait.until(answered)
        return Wait.any_of(answered, Timer.by_duration(timer_until(interrupt.deadline, utc_now())))

    @guarded
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        """Apply the answer. The lock on the interrupts is held, so no answer slips in between."""
        try:
            record = _record(context, input)
        except ValueMappingError:
            return _give_up_unreadable(context, input)
        wanted = interrupt_id(record.turn_id, input)
        pending = stored(context, PENDING_INTERRUPTS) or []
        answers = INTERRUPT_RESOLUTIONS.results(context, wanted)
        decision = decide_approval(
            record,
            find_interrupt(pending, wanted),
            answers[0] if answers else None,
            utc_now(),
        )
        movements = self.session.movements
        match decision.result:
            case ApprovalResult.DONE:
                return dead_end()
            case ApprovalResult.WAIT:
                return go_to_many(movements.await_tool_approval(input))
            case ApprovalResult.RUN:
                AGENT_TOOL_CALLS.set(context, input, decision.record)
                with self.session.event_writer(context, record.turn_id) as events:
                    self._tell_resolved(events, wanted, decision.record)
                return go_to_many(movements.approved_tool_call(decision.record))
            case ApprovalResult.REJECTED | ApprovalResult.EXPIRED:
                if decision.result is ApprovalResult.EXPIRED:
                    store_interrupts(context, without_interrupt(pending, wanted))
                with self.session.event_writer(context, record.turn_id) as events:
                    self._tell_resolved(events, wanted, decision.record)
                    return _finish(context, FinalCall(decision.record), events)

    def _tell_raised(self, context: Context, interrupt: AgentInterrupt) -> None:
        deadline = interrupt.deadline
        self.session.write_committed_event(
            context,
            AgentEventType.INTERRUPT_RAISED,
            interrupt.turn_id,
            {
                "interrupt_id": interrupt.interrupt_id,
                "tool_call_id": interrupt.tool_call_id,
                "tool_name": interrupt.tool_name,
                "deadline": None if deadline is None else deadline.isoformat(),
            },
        )

    @staticmethod
    def _tell_resolved(events: AgentEventWriter, wanted: str, record: AgentToolCall) -> None:
        events.write_event(
            AgentEventType.INTERRUPT_RESOLVED,
            {
                "interrupt_id": wanted,
                "approved": record.status is ToolCallStatus.APPROVED,
                "rejection_message": record.rejection_message,
            },
        )


async def _let_frames_leave() -> None:
    """Give the worker the turns of the event loop it needs to send what was queued.

    A heartbeat returns once its frame is queued. A tool that blocks the loop right away would
    otherwise keep the frame back until it ends.
    """
    for _ in range(_SEND_TURNS):
        await asyncio.sleep(0)


class ToolStep(SessionStep[str]):
    """What both Steps that run a tool do."""

    @guarded
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        """Run one attempt of the call."""
        record = _record(context, input)
        if record.status.is_final:
            return dead_end()
        if record.status is ToolCallStatus.AWAITING_APPROVAL:
            raise DexAgentsError(f"tool call {input!r} was not approved, so it is not run")
        with self.session.event_writer(context, record.turn_id) as events:
            events.write_tool_call_started(record.tool_call_id, record.tool_name)
            events.flush()
            # The engine should have seen a sign of this attempt before the tool has any effect.
            await context.heartbeat()
            await _let_frames_leave()
            return _finish(context, await self._run(context, record, events), events)

    async def _run(
        self, context: AsyncContext, record: AgentToolCall, events: AgentEventWriter
    ) -> FinalCall:
        session = self.session
        call = DeferredToolExecution(
            flow_id=context.flow_id,
            tool_call=record,
            idempotency_key=idempotency_key(context.flow_id, record.turn_id, record.tool_call_id),
            attempt=context.attempt,
            events=events,
            heartbeat=context.heartbeat,
        )
        what = (
            f"tool {record.tool_name!r} (call {record.tool_call_id!r}) "
            f"in session {context.flow_id!r}"
        )
        interval = heartbeat_interval(session.options.tool_limits)
        async with keep_alive(context, what, session.watch, interval):
            try:
                result = await session.runner.execute_deferred_tool_call(call)
            except ToolExecutionError as error:
                limit = session.options.max_tool_output_bytes
                final = finish_with_error(record, error, limit)
                if final.left_out:
                    _LOG.warning(
                        "the failure of %s came with %s; it is left out", what, final.left_out
                    )
                return final
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                raise StepFailedError(
                    f"CancelledError: tool {record.tool_name!r} was cancelled from inside"
                ) from None
        return finish_with_result(record, result, session.options.max_tool_output_bytes)


class CallTool(ToolStep):
    """Runs a call that may run again: a read, or a write with an idempotency key."""


class CallSingleAttemptTool(ToolStep):
    """Runs a call that may run only once."""


class RecordToolFailure(SessionStep[str]):
    """Records that all attempts of a repeatable call were lost."""

    @guarded
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        """Make the record final: a read `failed`, a write is `outcome_unknown`."""
        try:
            record = _record(context, input)
        except ValueMappingError:
            return _give_up_unreadable(context, input)
        if record.status.is_final:
            return dead_end()
        with self.session.event_writer(context, record.turn_id) as events:
            return _finish(context, finish_after_crash(record, _lost(context)), events)


class RecordToolOutcomeUnknown(SessionStep[str]):
    """Records that the only attempt of a call was lost."""

    @guarded
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        """Make the record final: `outcome_unknown`."""
        try:
            record = _record(context, input)
        except ValueMappingError:
            return _give_up_unreadable(context, input)
        if record.status.is_final:
            return dead_end()
        with self.session.event_writer(context, record.turn_id) as events:
            return _finish(context, finish_with_unknown_outcome(record, _lost(context)), events)


def _lost(context: Context) -> str:
    recovery = context.recovery_error
    if recovery is None:
        return "the call was lost"
    return recovery.detail or recovery.error_type


class ResumeTurn(SessionStep[int]):
    """Waits until every call of a model response is final, then goes back to the model."""

    @guarded_sync
    def wait_for(self, context: Context, input: int) -> Wait:
        """Wait for the results that are still to come."""
        return Wait.until(TOOL_CALL_RESULTS.for_n(input))

    @guarded
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        """Count records, not messages: a message may be a leftover of an earlier turn.

        A record that cannot be read counts as final, since its Step has told that it is over; the
        model Step then fails the turn with words.
        """
        session = self.session
        state, index = session_state(context), session_index(context)
        turn = running_turn_id(state)
        results: list[ToolCallCompleted] = [
            result for result in TOOL_CALL_RESULTS.results(context) if result.turn_id == turn
        ]
        index = finish_tool_calls(index, results)
        AGENT_INDEX.set(context, index)
        unfinished = unfinished_calls(_readable_records(context, round_ids(index)))
        if unfinished:
            return go_to_many(session.movements.resume_turn(index, len(unfinished)))
        state = continue_turn(state)
        store_state(context, state)
        loads = plan_model_loads(session, context, state, index)
        return go_to_many(session.movements.run_model(index, loads))
