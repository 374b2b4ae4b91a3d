"""Between a task and the worker's cache: what arrived, what lacks, what to load next."""

from __future__ import annotations

from dataclasses import dataclass, field

from dex import AttributeMapNotLoadedError, Context, ValueMappingError

from dex_agents._internal_values import AgentSessionIndex
from dex_agents._session.cache import CachedSession
from dex_agents._session.history import ModelLoads, block_start, plan_loads
from dex_agents._session.tools import join_output
from dex_agents.errors import TurnFailedError
from dex_agents.persistence import (
    AGENT_MESSAGE_SIZES,
    AGENT_MESSAGES,
    AGENT_TOOL_CALLS,
    AGENT_TOOL_OUTPUTS,
    message_sequence_key,
)
from dex_agents.session_flow._runtime import SessionRuntime
from dex_agents.session_flow._storing import loaded_entry, stored_entry
from dex_agents.values import AgentMessage, AgentState, AgentToolCall


@dataclass
class TurnHistory:
    """What a model Step needs of the session.

    Attributes:
        messages: Every stored message, if nothing is missing.
        tool_calls: Every record of the turn with its whole result, if nothing is missing.
        is_complete: Whether nothing is missing.
    """

    messages: tuple[AgentMessage, ...] = ()
    tool_calls: dict[str, AgentToolCall] = field(default_factory=dict[str, AgentToolCall])
    is_complete: bool = False


def plan_model_loads(
    session: SessionRuntime,
    context: Context,
    state: AgentState,
    index: AgentSessionIndex,
    *,
    for_any_worker: bool = False,
) -> ModelLoads:
    """Choose what the next model Step's task carries, by what this worker keeps."""
    cached = session.cache.peek(context.flow_id, context.run_id)
    if state.turn_id is not None:
        cached.begin_turn(state.turn_id)
    return plan_loads(state.message_count, index, cached.keys(), for_any_worker=for_any_worker)


def take_in_history(
    session: SessionRuntime, context: Context, state: AgentState, index: AgentSessionIndex
) -> TurnHistory:
    """Put what this task carries into the cache, and collect what the model Step needs.

    Raises:
        TurnFailedError: A stored value is gone or cannot be read.
    """
    cached = session.cache.session(context.flow_id, context.run_id)
    cached.begin_turn(state.turn_id or "")
    missing = _take_in_messages(context, cached, state.message_count)
    _take_in_blocks(context, cached, index)
    missing += _take_in_calls(context, cached, index)
    session.trim_cache()
    if missing:
        return TurnHistory()
    return TurnHistory(
        tuple(cached.prefix[: state.message_count]),
        {
            entry.tool_call_id: join_output(
                cached.records[entry.tool_call_id],
                cached.outputs.get(entry.tool_call_id) if entry.output_bytes else None,
            )
            for entry in index.tool_calls
        },
        is_complete=True,
    )


def _forget_another_past(context: Context, cached: CachedSession, count: int) -> None:
    """Empty the cache if the newest message is another one than the worker remembers.

    An engine may let a session go on from an earlier point under the same run id.
    """
    remembered = cached.message(count)
    if remembered is None:
        return
    try:
        newest = loaded_entry(context, AGENT_MESSAGES, message_sequence_key(count))
    except ValueMappingError as error:
        raise _unreadable(f"message {count}", error) from None
    if newest is not None and newest != remembered:
        cached.clear()


def _take_in_messages(context: Context, cached: CachedSession, count: int) -> int:
    _forget_another_past(context, cached, count)
    missing = 0
    for sequence in range(len(cached.prefix) + 1, count + 1):
        if cached.message(sequence) is not None:
            continue
        what = f"message {sequence}"
        try:
            message = stored_entry(context, AGENT_MESSAGES, message_sequence_key(sequence))
        except AttributeMapNotLoadedError:
            missing += 1
            continue
        except ValueMappingError as error:
            raise _unreadable(what, error) from None
        if message is None:
            raise _gone(what)
        cached.add_message(message)
    return missing


def _take_in_blocks(context: Context, cached: CachedSession, index: AgentSessionIndex) -> None:
    for number in range(index.sealed_blocks):
        if number in cached.blocks:
            continue
        key = message_sequence_key(block_start(number))
        try:
            block = stored_entry(context, AGENT_MESSAGE_SIZES, key)
        except AttributeMapNotLoadedError:
            continue
        except ValueMappingError as error:
            raise _unreadable(f"sizes of block {number}", error) from None
        if block is None:
            raise _gone(f"sizes of block {number}")
        cached.add_block(number, block)


def _take_in_calls(context: Context, cached: CachedSession, index: AgentSessionIndex) -> int:
    missing = 0
    for entry in index.tool_calls:
        call_id = entry.tool_call_id
        what = f"record of tool call {call_id!r}"
        try:
            if call_id not in cached.records:
                record = stored_entry(context, AGENT_TOOL_CALLS, call_id)
                if record is None:
                    raise _gone(what)
                cached.add_record(record)
            if entry.output_bytes and call_id not in cached.outputs:
                output = stored_entry(context, AGENT_TOOL_OUTPUTS, call_id)
                if output is None:
                    raise _gone(f"result of tool call {call_id!r}")
                cached.add_output(call_id, output)
        except AttributeMapNotLoadedError:
            missing += 1
        except ValueMappingError as error:
            raise _unreadable(what, error) from None
    return missing


def _unreadable(what: str, error: ValueMappingError) -> TurnFailedError:
    return TurnFailedError(
        f"the stored {what} cannot be read by this release: {error.detail}", "UnreadableValue"
    )


def _gone(what: str) -> TurnFailedError:
    return TurnFailedError(f"the stored {what} is gone", "MissingValue")
