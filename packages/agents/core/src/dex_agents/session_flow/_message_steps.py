"""Steps between turns: the session starts, a user message starts a turn, a failed turn ends."""

from __future__ import annotations

from typing import Final

from dex import AsyncContext, Context, StepDecision, Wait, go_to_many

from dex_agents._internal_values import AgentSessionIndex
from dex_agents._session.failures import describe_turn_failure
from dex_agents._session.history import without_turn
from dex_agents._session.ids import turn_id
from dex_agents._session.notes import build_bounded_note
from dex_agents._session.text import describe_error
from dex_agents._session.turns import (
    TurnEnded,
    check_user_message,
    fail_turn,
    initial_state,
    start_turn,
    uncounted_usage,
)
from dex_agents.errors import TurnFailedError
from dex_agents.persistence import (
    AGENT_INDEX,
    AGENT_TOOL_CALLS,
    AGENT_USAGE,
    PENDING_INTERRUPTS,
    PENDING_TURN_FAILURE,
    QUEUED_USER_MESSAGES,
)
from dex_agents.session_flow._guard import guarded, guarded_sync
from dex_agents.session_flow._history_cache import plan_model_loads
from dex_agents.session_flow._runtime import SessionRuntime, SessionStep, utc_now
from dex_agents.session_flow._storing import (
    add_usage,
    append_messages,
    clear_turn,
    readable_entry,
    remember_message_id,
    session_index,
    session_state,
    store_interrupts,
    store_state,
    stored,
)
from dex_agents.values import (
    AgentEventType,
    AgentSessionStartInput,
    AgentState,
    AgentToolCall,
    AgentUsage,
    AgentUserMessage,
)

#: Attempts after which a runner that cannot build a user message no longer blocks the session.
_BUILD_ATTEMPTS: Final = 3


def _begin_turn(
    session: SessionRuntime,
    context: AsyncContext,
    state: AgentState,
    index: AgentSessionIndex,
    message: AgentUserMessage,
) -> StepDecision:
    """Store a user message and go to the model, or record why that is not possible."""
    number = state.turn_count + 1
    now = utc_now()
    try:
        built = check_user_message(session.runner.build_user_message(message.text))
        started = start_turn(state, built, message.message_id, now)
    except Exception as error:
        if context.attempt < _BUILD_ATTEMPTS and not isinstance(error, TurnFailedError):
            raise
        # The message has been taken from the queue, so failing for ever would block the session.
        ended = fail_turn(state, describe_error(error), None, now)
        remember_message_id(context, number, message.message_id)
        store_state(context, ended.state)
        return go_to_many(session.movements.await_user_message(ended.state))
    remember_message_id(context, number, message.message_id)
    index = append_messages(context, index, (started.message,))
    AGENT_INDEX.set(context, index)
    store_state(context, started.state)
    with session.event_writer(context, turn_id(number)) as events:
        events.write_event(AgentEventType.TURN_STARTED, {"sequence": started.state.message_count})
    loads = plan_model_loads(session, context, started.state, index)
    return go_to_many(session.movements.run_model(index, loads))


class StartAgentSession(SessionStep[AgentSessionStartInput]):
    """Sets up a new session and starts its first turn if there is a message."""

    @guarded
    async def execute(self, context: AsyncContext, input: AgentSessionStartInput) -> StepDecision:
        """Initialize the session."""
        state = initial_state()
        AGENT_USAGE.set(context, AgentUsage())
        AGENT_INDEX.set(context, AgentSessionIndex())
        store_interrupts(context, ())
        if not input.initial_message.strip():
            store_state(context, state)
            return go_to_many(self.session.movements.await_user_message(state))
        message = AgentUserMessage(input.initial_message, input.message_id)
        return _begin_turn(self.session, context, state, AgentSessionIndex(), message)


class AwaitUserMessage(SessionStep[None]):
    """Waits for the next user message and starts a turn with it."""

    @guarded_sync
    def wait_for(self, context: Context, input: None) -> Wait:
        """Tell how the last turn ended, now that it is committed, and wait for a message."""
        state = session_state(context)
        if state.turn_count:
            self._tell_turn_ended(context, state)
        return Wait.until(QUEUED_USER_MESSAGES.for_one())

    @guarded
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        """Start the turn."""
        state = session_state(context)
        message = QUEUED_USER_MESSAGES.results(context)[0]
        if not message.text.strip():
            return go_to_many(self.session.movements.await_user_message(state))
        return _begin_turn(self.session, context, state, session_index(context), message)

    def _tell_turn_ended(self, context: Context, state: AgentState) -> None:
        turn = turn_id(state.turn_count)
        if state.last_turn_error is None:
            self.session.write_committed_event(
                context,
                AgentEventType.TURN_COMPLETED,
                turn,
                {"message_count": state.message_count},
            )
        else:
            self.session.write_committed_event(
                context, AgentEventType.TURN_FAILED, turn, {"error": state.last_turn_error}
            )


class RecordTurnFailure(SessionStep[None]):
    """Ends a turn that failed, and leaves a note about the calls that ran."""

    @guarded
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        """Record the error and clear the turn."""
        session = self.session
        state, index = session_state(context), session_index(context)
        error = self._error(context)
        records = [
            record
            for entry in index.tool_calls
            if (record := readable_entry(context, AGENT_TOOL_CALLS, entry.tool_call_id)) is not None
            and record.status.is_final
        ]
        ended = self._end_turn(context, state, error, records, len(index.tool_calls))
        usage = uncounted_usage(records, index.counted_tool_calls)
        if usage != AgentUsage():
            add_usage(context, usage)
        AGENT_INDEX.set(context, without_turn(append_messages(context, index, ended.messages)))
        clear_turn(context, index)
        if stored(context, PENDING_TURN_FAILURE) is not None:
            PENDING_TURN_FAILURE.delete(context)
        if stored(context, PENDING_INTERRUPTS):
            store_interrupts(context, ())
        store_state(context, ended.state)
        return go_to_many(session.movements.await_user_message(ended.state))

    def _end_turn(
        self,
        context: AsyncContext,
        state: AgentState,
        error: str,
        records: list[AgentToolCall],
        calls: int,
    ) -> TurnEnded:
        now = utc_now()
        text = build_bounded_note(records, calls - len(records))
        if text is None:
            return fail_turn(state, error, None, now)
        try:
            note = check_user_message(self.session.runner.build_user_message(text))
            return fail_turn(state, error, note, now)
        except Exception as broken:
            if context.attempt < _BUILD_ATTEMPTS and not isinstance(broken, TurnFailedError):
                raise
            # The session must go on; its next turn then knows the calls only from the events.
            error = f"{error} (and no note could be stored: {describe_error(broken)})"
            return fail_turn(state, error, None, now)

    @staticmethod
    def _error(context: AsyncContext) -> str:
        recovery = context.recovery_error
        if recovery is not None:
            return recovery.detail or recovery.error_type
        pending = stored(context, PENDING_TURN_FAILURE)
        return describe_turn_failure(pending) if pending is not None else "the turn was ended"
