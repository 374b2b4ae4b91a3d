"""What a session stores: names, kinds and keys, shared by every session Flow type.

The definitions are module-level so that Steps, RPCs and clients refer to the same objects. Only the
`AgentEvents` Stream belongs to one Flow object, since the SDK ties a Stream to one Flow.
"""

from __future__ import annotations

from typing import Final

from dex import (
    Attribute,
    AttributeIndex,
    AttributeMap,
    Channel,
    ChannelMap,
    IndexType,
    PersistenceSchema,
    Stream,
)

from dex_agents._internal_values import (
    AgentMessageSizes,
    AgentSessionIndex,
    KnownMessageId,
    ModelStepBudget,
)
from dex_agents.values import (
    AgentEvent,
    AgentInterrupt,
    AgentInterruptResolution,
    AgentMessage,
    AgentState,
    AgentToolCall,
    AgentToolOutput,
    AgentUsage,
    AgentUserMessage,
    PendingTurnFailure,
    ToolCallCompleted,
    message_sequence_key,
)

__all__ = [
    "AGENT_INDEX",
    "AGENT_MESSAGES",
    "AGENT_MESSAGE_IDS",
    "AGENT_MESSAGE_SIZES",
    "AGENT_STATE",
    "AGENT_STATUS",
    "AGENT_TOOL_CALLS",
    "AGENT_TOOL_OUTPUTS",
    "AGENT_USAGE",
    "EVENTS_STREAM_NAME",
    "FRAMEWORK_RUN_STATE",
    "INTERRUPT_RESOLUTIONS",
    "MODEL_STEP_BUDGET",
    "PENDING_APPROVAL_COUNT",
    "PENDING_INTERRUPTS",
    "PENDING_TURN_FAILURE",
    "QUEUED_USER_MESSAGES",
    "TOOL_CALL_RESULTS",
    "agent_events_stream",
    "agent_persistence",
    "message_sequence_key",
]

#: State of the session. Written by the serial Steps only.
AGENT_STATE: Final = Attribute("AgentState", AgentState)
#: `AgentState.status`, indexed, so that sessions can be found by what they do.
AGENT_STATUS: Final = Attribute("AgentStatus", str, index=AttributeIndex(IndexType.KEYWORD))
#: Stored messages by `message_sequence_key`. An entry never changes.
AGENT_MESSAGES: Final = AttributeMap("AgentMessages", AgentMessage)
#: Sizes of sealed blocks of messages, by `message_sequence_key` of the block's first message.
AGENT_MESSAGE_SIZES: Final = AttributeMap("AgentMessageSizes", AgentMessageSizes)
#: Sizes of the newest messages and of the running turn's calls.
AGENT_INDEX: Final = Attribute("AgentSessionIndex", AgentSessionIndex)
#: Message ids in use, by `message_id_key`, and the id of each recent turn, by `turn_slot_key`.
AGENT_MESSAGE_IDS: Final = AttributeMap("AgentMessageIds", KnownMessageId)
#: The framework's state between two model Steps of one turn; absent otherwise.
FRAMEWORK_RUN_STATE: Final = Attribute("FrameworkRunState", str)
#: Records of the running turn by tool call id; deleted when the turn ends.
AGENT_TOOL_CALLS: Final = AttributeMap("AgentToolCalls", AgentToolCall)
#: Long results of the running turn by tool call id; deleted when the turn ends.
AGENT_TOOL_OUTPUTS: Final = AttributeMap("AgentToolOutputs", AgentToolOutput)
#: Questions that wait for a person. Written under its lock, or when no question is pending.
PENDING_INTERRUPTS: Final = Attribute("PendingInterrupts", list[AgentInterrupt])
#: Length of `PENDING_INTERRUPTS`, indexed, so that waiting sessions can be found.
PENDING_APPROVAL_COUNT: Final = Attribute(
    "PendingApprovalCount", int, index=AttributeIndex(IndexType.INT)
)
#: A final failure on its way from `RunModel` to `RecordTurnFailure`.
PENDING_TURN_FAILURE: Final = Attribute("PendingTurnFailure", PendingTurnFailure)
#: What `RunModel` has used up while it hands itself on to load history; absent otherwise.
MODEL_STEP_BUDGET: Final = Attribute("ModelStepBudget", ModelStepBudget)
#: Usage of the whole session.
AGENT_USAGE: Final = Attribute("AgentUsage", AgentUsage)
#: User messages that wait for their turn.
QUEUED_USER_MESSAGES: Final = Channel("QueuedUserMessages", AgentUserMessage)
#: Answers on their way to `AwaitToolApproval`, by interrupt id.
INTERRUPT_RESOLUTIONS: Final = ChannelMap("InterruptResolutions", AgentInterruptResolution)
#: One message per tool call, when its record becomes final.
TOOL_CALL_RESULTS: Final = Channel("ToolCallResults", ToolCallCompleted)

EVENTS_STREAM_NAME: Final = "AgentEvents"


def agent_events_stream(capacity_bytes: int) -> Stream[AgentEvent]:
    """Make the `AgentEvents` Stream of one Flow object.

    Args:
        capacity_bytes: Capacity shared by all sessions of the Flow type.
    """
    return Stream(EVENTS_STREAM_NAME, AgentEvent, capacity_bytes)


def agent_persistence(events: Stream[AgentEvent]) -> PersistenceSchema:
    """Return the schema of a session Flow.

    Args:
        events: The Flow's own event Stream.
    """
    return PersistenceSchema.of(
        AGENT_STATE,
        AGENT_STATUS,
        AGENT_MESSAGES,
        AGENT_MESSAGE_SIZES,
        AGENT_INDEX,
        AGENT_MESSAGE_IDS,
        FRAMEWORK_RUN_STATE,
        AGENT_TOOL_CALLS,
        AGENT_TOOL_OUTPUTS,
        PENDING_INTERRUPTS,
        PENDING_APPROVAL_COUNT,
        PENDING_TURN_FAILURE,
        MODEL_STEP_BUDGET,
        AGENT_USAGE,
        QUEUED_USER_MESSAGES,
        INTERRUPT_RESOLUTIONS,
        TOOL_CALL_RESULTS,
        events,
    )
