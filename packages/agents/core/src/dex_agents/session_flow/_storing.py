"""Reading and writing the session's state through the context of a handler.

Every attribute that belongs together is written by one function, so that no Step can forget half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from dex import (
    Attribute,
    AttributeMap,
    AttributeMapNotLoadedError,
    Context,
    ValueMappingError,
)

from dex_agents._internal_values import AgentSessionIndex, KnownMessageId
from dex_agents._session.history import append_sizes
from dex_agents._session.ids import message_id_key, turn_slot_key
from dex_agents._session.turns import SizedMessage
from dex_agents.errors import DexAgentsError
from dex_agents.persistence import (
    AGENT_INDEX,
    AGENT_MESSAGE_IDS,
    AGENT_MESSAGE_SIZES,
    AGENT_MESSAGES,
    AGENT_STATE,
    AGENT_STATUS,
    AGENT_TOOL_CALLS,
    AGENT_TOOL_OUTPUTS,
    AGENT_USAGE,
    FRAMEWORK_RUN_STATE,
    MODEL_STEP_BUDGET,
    PENDING_APPROVAL_COUNT,
    PENDING_INTERRUPTS,
    message_sequence_key,
)
from dex_agents.values import AgentInterrupt, AgentState, AgentUsage

ValueT = TypeVar("ValueT")


def stored(context: Context, attribute: Attribute[ValueT]) -> ValueT | None:
    """Return a stored value, or `None` when there is none."""
    return attribute.get(context)


def stored_entry(context: Context, attribute_map: AttributeMap[ValueT], key: str) -> ValueT | None:
    """Return a stored map entry, or `None` when there is none.

    Raises:
        AttributeMapNotLoadedError: This task did not load the entry.
    """
    return attribute_map.get(context, key)


def loaded_entry(context: Context, attribute_map: AttributeMap[ValueT], key: str) -> ValueT | None:
    """Return a stored map entry, or `None` when there is none or this task did not load it."""
    try:
        return attribute_map.get(context, key)
    except AttributeMapNotLoadedError:
        return None


def readable_entry(
    context: Context, attribute_map: AttributeMap[ValueT], key: str
) -> ValueT | None:
    """Return a stored map entry, or `None` when it is absent, not loaded or cannot be read."""
    try:
        return loaded_entry(context, attribute_map, key)
    except ValueMappingError:
        return None


def session_state(context: Context) -> AgentState:
    """Return the session's state.

    Raises:
        DexAgentsError: The session has none, so it was not started by `StartAgentSession`.
    """
    state = stored(context, AGENT_STATE)
    if state is None:
        raise DexAgentsError(f"session {context.flow_id!r} has no stored state")
    return state


def session_index(context: Context) -> AgentSessionIndex:
    """Return the session's index."""
    return stored(context, AGENT_INDEX) or AgentSessionIndex()


def store_state(context: Context, state: AgentState) -> None:
    """Write the state and its searchable copy. Only serial Steps may call this."""
    AGENT_STATE.set(context, state)
    AGENT_STATUS.set(context, state.status.value)


def store_interrupts(context: Context, interrupts: Iterable[AgentInterrupt]) -> None:
    """Write the pending approvals and their searchable number."""
    pending = list(interrupts)
    PENDING_INTERRUPTS.set(context, pending)
    PENDING_APPROVAL_COUNT.set(context, len(pending))


def append_messages(
    context: Context, index: AgentSessionIndex, messages: Sequence[SizedMessage]
) -> AgentSessionIndex:
    """Write new messages and sealed blocks of sizes; return the index to store.

    Args:
        context: Context of the running Step.
        index: Index before.
        messages: New messages, whose sequences follow the last stored one.
    """
    if not messages:
        return index
    for sized in messages:
        AGENT_MESSAGES.set(context, message_sequence_key(sized.message.sequence), sized.message)
    count_before = messages[0].message.sequence - 1
    appended = append_sizes(index, count_before, [sized.size for sized in messages])
    for first, block in appended.sealed:
        AGENT_MESSAGE_SIZES.set(context, message_sequence_key(first), block)
    return appended.index


def remember_message_id(context: Context, turn_number: int, message_id: str) -> None:
    """Mark a message id as used by a turn, and forget the id that used the turn's slot before.

    Args:
        context: Context of the running Step; it has loaded the turn's slot.
        turn_number: Number of the turn that the message starts.
        message_id: Id of the message, or an empty string for none.
    """
    slot = turn_slot_key(turn_number)
    forgotten = loaded_entry(context, AGENT_MESSAGE_IDS, slot)
    if forgotten is not None and forgotten.message_id != message_id:
        AGENT_MESSAGE_IDS.delete(context, message_id_key(forgotten.message_id))
    if message_id:
        known = KnownMessageId(message_id)
        AGENT_MESSAGE_IDS.set(context, slot, known)
        AGENT_MESSAGE_IDS.set(context, message_id_key(message_id), known)
    elif forgotten is not None:
        AGENT_MESSAGE_IDS.delete(context, slot)


def add_usage(context: Context, usage: AgentUsage) -> AgentUsage:
    """Add to the session's usage and return the new total."""
    total = (stored(context, AGENT_USAGE) or AgentUsage()) + usage
    AGENT_USAGE.set(context, total)
    return total


def clear_turn(context: Context, index: AgentSessionIndex) -> None:
    """Delete everything that belongs to the running turn only."""
    for entry in index.tool_calls:
        AGENT_TOOL_CALLS.delete(context, entry.tool_call_id)
        if entry.output_bytes:
            AGENT_TOOL_OUTPUTS.delete(context, entry.tool_call_id)
    if stored(context, FRAMEWORK_RUN_STATE) is not None:
        FRAMEWORK_RUN_STATE.delete(context)
    drop_budget(context)


def drop_budget(context: Context) -> None:
    """Delete the model Step's budget once the Step has done its work."""
    if stored(context, MODEL_STEP_BUDGET) is not None:
        MODEL_STEP_BUDGET.delete(context)
