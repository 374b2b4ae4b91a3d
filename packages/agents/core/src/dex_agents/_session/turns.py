"""How a turn starts, asks for tools and ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast

from dex_agents._json_form import encoded_bytes
from dex_agents._session.history import MAX_ITEM_BYTES
from dex_agents._session.ids import check_tool_call_id, interrupt_id, turn_id
from dex_agents._session.text import bound_bytes, is_encodable
from dex_agents.errors import RunnerContractError, TurnFailedError
from dex_agents.runner import (
    DeferredToolCall,
    FrameworkMessage,
    ToolCallsRequested,
    ToolPolicy,
    TurnCompleted,
    TurnContinues,
)
from dex_agents.values import (
    AgentInterrupt,
    AgentMessage,
    AgentState,
    AgentStatus,
    AgentToolCall,
    AgentUsage,
    MessageRole,
    ToolCallStatus,
)

#: The run state travels with every task of the session, so it must leave room for the rest.
MAX_RUN_STATE_BYTES: Final = 512 * 1024
#: Approvals that wait travel with every task too.
MAX_INTERRUPTS_BYTES: Final = 512 * 1024
#: Records of one model response: they grow when they become final, and are loaded together.
MAX_DEFERRED_BYTES: Final = 1_500_000
#: Tool calls of one model response.
MAX_TOOL_CALLS: Final = 128
#: One result of a Step; engines refuse frames of more than 3.5 MiB.
MAX_RESULT_BYTES: Final = 3_000_000

_MAX_TURN_ERROR_BYTES: Final = 2000


@dataclass(frozen=True)
class SizedMessage:
    """A message to store, and its size as stored."""

    message: AgentMessage
    size: int


@dataclass(frozen=True)
class TurnStarted:
    """A turn that has begun: the new state and the stored user message."""

    state: AgentState
    message: SizedMessage


@dataclass(frozen=True)
class TurnEnded:
    """A turn that is over: the new state and the messages to append."""

    state: AgentState
    messages: tuple[SizedMessage, ...]


@dataclass(frozen=True)
class ToolsDeferred:
    """A turn that waits for tools: the new state, and what to store for each call."""

    state: AgentState
    records: tuple[AgentToolCall, ...]
    record_bytes: tuple[int, ...]
    interrupts: tuple[AgentInterrupt, ...]


def initial_state() -> AgentState:
    """Return the state of a session without any turn."""
    return AgentState(AgentStatus.WAITING_FOR_USER_MESSAGE)


def running_turn_id(state: AgentState) -> str:
    """Return the id of the turn that runs, or would run next."""
    return state.turn_id or turn_id(state.turn_count + 1)


def check_user_message(message: object) -> FrameworkMessage:
    """Return what `build_user_message` made, if the session can use it.

    Raises:
        RunnerContractError: It is no `FrameworkMessage`, or its role is not `user`.
    """
    if not isinstance(message, FrameworkMessage):
        raise RunnerContractError(
            f"build_user_message returned {type(message).__name__}, not a FrameworkMessage"
        )
    if message.role != MessageRole.USER:
        raise RunnerContractError(
            f"build_user_message returned a message with role {message.role!r}, not 'user'"
        )
    return message


def start_turn(
    state: AgentState, message: FrameworkMessage, message_id: str, now: datetime
) -> TurnStarted:
    """Begin the next turn with a user message.

    Raises:
        TurnFailedError: The message is too long to be stored.
    """
    turn = turn_id(state.turn_count + 1)
    stored = _sized(
        _stored(message, state.message_count + 1, turn, now, message_id), "the user message"
    )
    return TurnStarted(
        AgentState(
            AgentStatus.RUNNING_MODEL,
            state.turn_count,
            state.message_count + 1,
            turn,
            state.last_turn_error,
        ),
        stored,
    )


def complete_turn(state: AgentState, outcome: TurnCompleted, now: datetime) -> TurnEnded:
    """End the running turn with everything it produced.

    Raises:
        RunnerContractError: An item is no usable message.
        TurnFailedError: The messages do not fit into one commit.
    """
    turn = running_turn_id(state)
    messages: list[SizedMessage] = []
    for item in cast(Sequence[object], outcome.new_messages):
        if not isinstance(item, FrameworkMessage):
            raise RunnerContractError(
                f"new_messages holds {type(item).__name__}, not a FrameworkMessage"
            )
        stored = _stored(item, state.message_count + len(messages) + 1, turn, now)
        messages.append(_sized(stored, f"an item of {turn}"))
    size = sum(sized.size for sized in messages)
    _check_result_size(size, f"the {len(messages)} messages of {turn}")
    ended = AgentState(
        AgentStatus.WAITING_FOR_USER_MESSAGE,
        state.turn_count + 1,
        state.message_count + len(messages),
    )
    return TurnEnded(ended, tuple(messages))


def fail_turn(
    state: AgentState, error: str, note: FrameworkMessage | None, now: datetime
) -> TurnEnded:
    """End the running turn, or the one that could not even start, with an error.

    Args:
        state: State before.
        error: What `last_turn_error` will say.
        note: What the next turn's model must know about the calls that ran, if any.
        now: The worker's clock.
    """
    messages: tuple[SizedMessage, ...] = ()
    if note is not None:
        stored = _stored(note, state.message_count + 1, running_turn_id(state), now)
        messages = (_sized(stored, "the note about the failed turn"),)
    return TurnEnded(
        AgentState(
            AgentStatus.WAITING_FOR_USER_MESSAGE,
            state.turn_count + 1,
            state.message_count + len(messages),
            None,
            bound_bytes(error, _MAX_TURN_ERROR_BYTES),
        ),
        messages,
    )


def check_run_state(run_state: object) -> str:
    """Return a framework run state, if it can be stored.

    Raises:
        RunnerContractError: It is empty, no text, or cannot be encoded.
        TurnFailedError: It is too long.
    """
    if not isinstance(run_state, str) or not run_state:
        raise RunnerContractError("framework_run_state must be text and not empty")
    if not is_encodable(run_state):
        raise RunnerContractError("framework_run_state holds a character that UTF-8 cannot carry")
    size = len(run_state.encode())
    if size > MAX_RUN_STATE_BYTES:
        raise TurnFailedError(
            f"the framework's run state has {size} bytes; the limit is {MAX_RUN_STATE_BYTES}",
            "RunStateTooLarge",
        )
    return run_state


def continue_turn(state: AgentState) -> AgentState:
    """Return the state of a turn that goes straight to another model call."""
    return AgentState(
        AgentStatus.RUNNING_MODEL,
        state.turn_count,
        state.message_count,
        running_turn_id(state),
        state.last_turn_error,
    )


def defer_tool_calls(
    state: AgentState,
    outcome: ToolCallsRequested,
    known_ids: Collection[str],
    now: datetime,
    interrupt_deadline: timedelta | None,
) -> ToolsDeferred:
    """Store the tool calls the model asked for.

    Args:
        state: State before.
        outcome: What the runner returned.
        known_ids: Ids of the calls this turn has made before.
        now: The worker's clock.
        interrupt_deadline: Time an approval may wait, or `None` for ever.

    Raises:
        RunnerContractError: There is no call, or one of them cannot be stored.
        TurnFailedError: The calls do not fit into one commit.
    """
    calls = cast(Sequence[object], outcome.tool_calls)
    if not calls:
        raise RunnerContractError("tool_calls is empty; return TurnContinues or TurnCompleted")
    if len(calls) > MAX_TOOL_CALLS:
        raise RunnerContractError(
            f"the model asked for {len(calls)} tools at once; at most {MAX_TOOL_CALLS} are allowed"
        )
    turn = running_turn_id(state)
    deadline = None if interrupt_deadline is None else now + interrupt_deadline
    seen = set(known_ids)
    records: list[AgentToolCall] = []
    interrupts: list[AgentInterrupt] = []
    for call in calls:
        checked = _check_deferred_call(call, seen)
        seen.add(checked.tool_call_id)
        asks = checked.is_approval_required
        record = AgentToolCall(
            checked.tool_call_id,
            turn,
            checked.tool_name,
            checked.arguments,
            checked.policy.effect,
            asks,
            len(known_ids) + len(records),
            ToolCallStatus.AWAITING_APPROVAL if asks else ToolCallStatus.PENDING,
            framework_payload=checked.framework_payload,
        )
        records.append(record)
        if asks:
            interrupts.append(
                AgentInterrupt(
                    interrupt_id(turn, record.tool_call_id),
                    turn,
                    record.tool_call_id,
                    record.tool_name,
                    record.arguments,
                    record.effect,
                    now,
                    deadline,
                )
            )
    waiting = sum(map(encoded_bytes, interrupts))
    if waiting > MAX_INTERRUPTS_BYTES:
        raise TurnFailedError(
            f"the arguments of the {len(interrupts)} calls that need approval have {waiting} bytes "
            f"as stored; the limit is {MAX_INTERRUPTS_BYTES}",
            "ResultTooLarge",
        )
    sizes = tuple(_item_bytes(r, f"tool call {r.tool_call_id!r}") for r in records)
    _check_result_size(sum(sizes), f"the {len(records)} tool calls of {turn}", MAX_DEFERRED_BYTES)
    deferred = AgentState(
        AgentStatus.RUNNING_TOOLS,
        state.turn_count,
        state.message_count,
        turn,
        state.last_turn_error,
    )
    return ToolsDeferred(deferred, tuple(records), sizes, tuple(interrupts))


def unfinished_calls(records: Iterable[AgentToolCall]) -> list[str]:
    """Return the ids of the calls that are not final yet."""
    return [record.tool_call_id for record in records if not record.status.is_final]


def uncounted_usage(records: Iterable[AgentToolCall], counted: int) -> AgentUsage:
    """Return the usage inside tools that the session's total does not hold yet.

    Args:
        records: Records of the turn.
        counted: Number of calls, in deferral order, whose usage has been added before.
    """
    return AgentUsage.total(record.usage for record in records if record.deferral_order >= counted)


def check_usage(outcome: TurnCompleted | ToolCallsRequested | TurnContinues) -> AgentUsage:
    """Return the usage of a model call, if the session can add it.

    Raises:
        RunnerContractError: It is no `AgentUsage`.
    """
    usage = cast(object, outcome.usage)
    if not isinstance(usage, AgentUsage):
        raise RunnerContractError(f"usage must be an AgentUsage, not {type(usage).__name__}")
    return usage


def _check_deferred_call(call: object, seen: set[str]) -> DeferredToolCall:
    if not isinstance(call, DeferredToolCall):
        raise RunnerContractError(f"tool_calls holds {type(call).__name__}, not a DeferredToolCall")
    for name in ("tool_call_id", "tool_name", "arguments"):
        value: object = getattr(call, name)
        if not isinstance(value, str):
            raise RunnerContractError(
                f"{name} of a deferred tool call must be text, not {type(value).__name__}"
            )
    check_tool_call_id(call.tool_call_id)
    if call.tool_call_id in seen:
        raise RunnerContractError(
            f"tool call id {call.tool_call_id!r} is used twice in one turn; ids must be unique"
        )
    policy = cast(object, call.policy)
    if not isinstance(policy, ToolPolicy):
        raise RunnerContractError(
            f"the policy of tool {call.tool_name!r} must be a ToolPolicy, "
            f"not {type(policy).__name__}"
        )
    return call


def _sized(message: AgentMessage, what: str) -> SizedMessage:
    return SizedMessage(message, _item_bytes(message, what))


def _item_bytes(item: AgentMessage | AgentToolCall, what: str) -> int:
    size = encoded_bytes(item)
    if size > MAX_ITEM_BYTES:
        raise TurnFailedError(
            f"{what} has {size} bytes as stored; the limit is {MAX_ITEM_BYTES}", "ResultTooLarge"
        )
    return size


def _check_result_size(size: int, what: str, limit: int = MAX_RESULT_BYTES) -> None:
    if size > limit:
        raise TurnFailedError(
            f"{what} have {size} bytes as stored; the limit is {limit}", "ResultTooLarge"
        )


def _stored(
    message: FrameworkMessage, sequence: int, turn: str, now: datetime, message_id: str = ""
) -> AgentMessage:
    for name in ("framework_item", "text", "agent_name"):
        value: object = getattr(message, name)
        if not isinstance(value, str):
            raise RunnerContractError(
                f"{name} of a message must be text, not {type(value).__name__}"
            )
    try:
        role = MessageRole(message.role)
    except ValueError:
        raise RunnerContractError(f"a message has the unknown role {message.role!r}") from None
    return AgentMessage(
        sequence,
        turn,
        role,
        message.text,
        message.framework_item,
        now,
        message_id,
        message.agent_name,
    )
