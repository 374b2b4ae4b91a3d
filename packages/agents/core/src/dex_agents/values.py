"""Value types of an agent session: what is stored, sent and shown.

Every type is a frozen dataclass of plain data. All of them carry `format_version`, so that a later
release can read what an earlier one stored. A value rebuilt from JSON by a generic codec repairs
its own fields (text to `datetime` or enum, object to dataclass), so a Registry without the explicit
codecs of `dex_agents.codecs` works too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from dex_agents._internal_values import AgentSessionIndex
from dex_agents._packing import inflate_item, inflate_text
from dex_agents._value_base import StoredValue


class AgentStatus(StrEnum):
    """What a session is doing."""

    WAITING_FOR_USER_MESSAGE = "waiting_for_user_message"
    RUNNING_MODEL = "running_model"
    RUNNING_TOOLS = "running_tools"


class MessageRole(StrEnum):
    """Who a message comes from."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolEffect(StrEnum):
    """What a tool call does to the world, which decides how often it may run.

    `READ` and `IDEMPOTENT_WRITE` run again after a crash (an idempotent write with the same key).
    `NON_IDEMPOTENT_WRITE` and `UNCLASSIFIED` run at most once and ask for approval by default.
    """

    READ = "read"
    IDEMPOTENT_WRITE = "idempotent_write"
    NON_IDEMPOTENT_WRITE = "non_idempotent_write"
    UNCLASSIFIED = "unclassified"

    @property
    def is_repeatable(self) -> bool:
        """Whether a call with this effect may run again after a crash or an error."""
        return self in (ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE)

    @property
    def requires_approval_by_default(self) -> bool:
        """Whether a call with this effect waits for a person unless a policy says otherwise."""
        return not self.is_repeatable


class ToolCallStatus(StrEnum):
    """Where one tool call stands. The last four are final and never change."""

    PENDING = "pending"
    AWAITING_APPROVAL = "awaiting_approval"
    APPROVED = "approved"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    OUTCOME_UNKNOWN = "outcome_unknown"

    @property
    def is_final(self) -> bool:
        """Whether a record with this status will not change any more."""
        return self in FINAL_TOOL_CALL_STATUSES


FINAL_TOOL_CALL_STATUSES = frozenset(
    {
        ToolCallStatus.SUCCEEDED,
        ToolCallStatus.FAILED,
        ToolCallStatus.REJECTED,
        ToolCallStatus.OUTCOME_UNKNOWN,
    }
)


class AgentEventType(StrEnum):
    """Kinds of events on the `AgentEvents` Stream."""

    TURN_STARTED = "turn_started"
    TURN_COMPLETED = "turn_completed"
    TURN_FAILED = "turn_failed"
    TEXT_DELTA = "text_delta"
    REASONING_DELTA = "reasoning_delta"
    TOOL_CALL_STARTED = "tool_call_started"
    TOOL_CALL_FINISHED = "tool_call_finished"
    TOOL_CALL_DEFERRED = "tool_call_deferred"
    INTERRUPT_RAISED = "interrupt_raised"
    INTERRUPT_RESOLVED = "interrupt_resolved"
    USAGE_RECORDED = "usage_recorded"


def message_sequence_key(sequence: int) -> str:
    """Return the key of a message in the `AgentMessages` map: twelve digits, so keys sort by age.

    Args:
        sequence: Position of the message in the session, from 1.
    """
    return f"{sequence:012d}"


@dataclass(frozen=True)
class AgentUsage(StoredValue):
    """Model usage, counted in calls and tokens.

    Attributes:
        model_calls: Number of model calls, also those that reported no tokens.
        input_tokens: Tokens sent to the model.
        output_tokens: Tokens the model produced.
        total_tokens: Sum as reported by the provider.
        cached_input_tokens: Part of `input_tokens` served from the provider's cache.
        reasoning_tokens: Part of `output_tokens` spent on reasoning.
    """

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: AgentUsage) -> AgentUsage:
        return AgentUsage(
            self.model_calls + other.model_calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.total_tokens + other.total_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    @classmethod
    def total(cls, usages: Iterable[AgentUsage | None]) -> AgentUsage:
        """Add up usages, skipping those that were not reported."""
        result = cls()
        for usage in usages:
            if usage is not None:
                result = result + usage
        return result


@dataclass(frozen=True)
class AgentState(StoredValue):
    """State of one session.

    Attributes:
        status: What the session is doing.
        turn_count: Turns that have ended, completed or failed.
        message_count: Stored messages; their sequences are 1 to this number.
        turn_id: The running turn, `turn-<turn_count + 1>`, or `None` while the session waits.
        last_turn_error: Why the last turn failed (`<error type>: <text>`), or `None` once a later
            turn has completed.
    """

    status: AgentStatus
    turn_count: int = 0
    message_count: int = 0
    turn_id: str | None = None
    last_turn_error: str | None = None

    def _repair(self) -> None:
        self._repair_enum("status", AgentStatus)


@dataclass(frozen=True)
class AgentMessage(StoredValue):
    """One stored message: a user message or one item the framework produced.

    Attributes:
        sequence: Position in the session, from 1.
        turn_id: Turn that stored it.
        role: Who it comes from.
        text: Readable text; empty for items without any.
        framework_item: The framework's own form of the item, as JSON text.
        created_at: When it was stored, by the worker's clock, with a time zone.
        message_id: Id given by the sender of a user message, else empty.
        agent_name: Agent that produced the item, when the framework names one.
    """

    sequence: int
    turn_id: str
    role: MessageRole
    text: str
    framework_item: str
    created_at: datetime
    message_id: str = ""
    agent_name: str = ""

    def _repair(self) -> None:
        self._repair_enum("role", MessageRole)
        self._repair_datetime("created_at")
        self._repair_text("framework_item", inflate_item)


@dataclass(frozen=True)
class AgentToolCall(StoredValue):
    """Record of one tool call of the running turn.

    Attributes:
        tool_call_id: Id given by the model, unique within its turn.
        turn_id: Turn the call belongs to.
        tool_name: Name of the tool.
        arguments: Arguments as the model wrote them, normally JSON text.
        effect: What the call does to the world.
        requires_approval: Whether it runs only after a person approved it.
        deferral_order: Position among the calls of the turn, from 0, in model order.
        status: Where the call stands.
        output: What the tool returned, once `succeeded`.
        error: Why the call is `failed` or `outcome_unknown`.
        rejection_message: What the person wrote when rejecting, or the reason of an expiry.
        framework_payload: Data the adapter keeps with the call, as JSON text.
        usage: Model usage inside the tool, added to the session by the next model Step.
        is_output_cut: Whether `output` is only the beginning. A long output is stored apart from
            its record, so that looking at a session stays cheap; the model reads all of it.
    """

    tool_call_id: str
    turn_id: str
    tool_name: str
    arguments: str
    effect: ToolEffect
    requires_approval: bool
    deferral_order: int
    status: ToolCallStatus = ToolCallStatus.PENDING
    output: str | None = None
    error: str | None = None
    rejection_message: str | None = None
    framework_payload: str | None = None
    usage: AgentUsage | None = None
    is_output_cut: bool = field(default=False, kw_only=True)

    def _repair(self) -> None:
        self._repair_enum("effect", ToolEffect)
        self._repair_enum("status", ToolCallStatus)
        self._repair_value("usage", AgentUsage)
        self._repair_text("output", inflate_text)
        self._repair_text("framework_payload", inflate_text)


@dataclass(frozen=True)
class AgentToolOutput(StoredValue):
    """The whole result of a tool call whose record holds only the beginning.

    Attributes:
        output: What the tool returned, or `None` when it failed.
        framework_payload: Data the adapter keeps with the result, as JSON text.
    """

    output: str | None = None
    framework_payload: str | None = None

    def _repair(self) -> None:
        self._repair_text("output", inflate_text)
        self._repair_text("framework_payload", inflate_text)


@dataclass(frozen=True)
class AgentInterrupt(StoredValue):
    """A question to a person: may this tool call run?

    Attributes:
        interrupt_id: Opaque id to answer with.
        turn_id: Turn that waits.
        tool_call_id: Call that waits.
        tool_name: Name of its tool.
        arguments: Its arguments as the model wrote them.
        effect: What the call does to the world.
        raised_at: When the question was asked, by the worker's clock.
        deadline: When it is rejected without an answer, or `None` for never.
    """

    interrupt_id: str
    turn_id: str
    tool_call_id: str
    tool_name: str
    arguments: str
    effect: ToolEffect
    raised_at: datetime
    deadline: datetime | None = None

    def _repair(self) -> None:
        self._repair_enum("effect", ToolEffect)
        self._repair_datetime("raised_at")
        self._repair_datetime("deadline")


@dataclass(frozen=True)
class AgentInterruptResolution(StoredValue):
    """The answer to one interrupt, on its way to the Step that waits for it.

    Attributes:
        approved: Whether the call may run.
        rejection_message: What the model reads when it may not.
    """

    approved: bool
    rejection_message: str | None = None


@dataclass(frozen=True)
class ResolveInterruptRequest(StoredValue):
    """Input of the `resolve_interrupt` RPC.

    Attributes:
        interrupt_id: The interrupt to answer.
        approved: Whether the call may run.
        rejection_message: What the model reads when it may not; dropped on approval.
    """

    interrupt_id: str
    approved: bool
    rejection_message: str | None = None


@dataclass(frozen=True)
class AgentUserMessage(StoredValue):
    """A message of the user.

    Attributes:
        text: What the user wrote.
        message_id: Id that makes a repeated send harmless; empty for none.
    """

    text: str
    message_id: str = ""


@dataclass(frozen=True)
class AgentSessionStartInput(StoredValue):
    """Input of a new session.

    Attributes:
        initial_message: First user message; a blank one starts no turn.
        message_id: Id of that message.
    """

    initial_message: str = ""
    message_id: str = ""


@dataclass(frozen=True)
class ToolCallCompleted(StoredValue):
    """Sent once per tool call, when its record becomes final.

    Attributes:
        tool_call_id: The call.
        turn_id: Its turn, so that a leftover of an earlier turn is recognised.
        record_bytes: Size of the final record.
        output_bytes: Size of what is stored apart from the record; 0 for nothing.
    """

    tool_call_id: str
    turn_id: str = ""
    record_bytes: int = 0
    output_bytes: int = 0


@dataclass(frozen=True)
class PendingTurnFailure(StoredValue):
    """A final failure on its way from the model Step to the Step that records it.

    Attributes:
        message: What went wrong.
        error_type: Kind of failure.
    """

    message: str
    error_type: str = ""


@dataclass(frozen=True)
class AgentSnapshot(StoredValue):
    """What a person or a user interface needs to show a session.

    Attributes:
        state: State of the session, or `None` until its first Step has committed.
        messages: The newest messages, oldest first.
        pending_interrupts: Questions waiting for a person.
        tool_calls: Records of the running turn in model order; long outputs are cut.
        usage: Usage of the whole session.
        queued_message_count: User messages that wait for their turn.
        index: What there is to load; for the client, which asks for exact keys.
    """

    state: AgentState | None = None
    messages: tuple[AgentMessage, ...] = ()
    pending_interrupts: tuple[AgentInterrupt, ...] = ()
    tool_calls: tuple[AgentToolCall, ...] = ()
    usage: AgentUsage = field(default_factory=AgentUsage)
    queued_message_count: int = 0
    index: AgentSessionIndex | None = field(default=None, kw_only=True, repr=False, compare=False)

    def _repair(self) -> None:
        self._repair_value("state", AgentState)
        self._repair_value("index", AgentSessionIndex)
        self._repair_values("messages", AgentMessage)
        self._repair_values("pending_interrupts", AgentInterrupt)
        self._repair_values("tool_calls", AgentToolCall)
        self._repair_value("usage", AgentUsage)


@dataclass(frozen=True)
class ListAgentMessagesRequest(StoredValue):
    """Input of the `list_agent_messages` RPC.

    Attributes:
        after_sequence: Return messages with a higher sequence; 0 for the beginning.
        limit: Most messages to return; clamped to 1..200.
    """

    after_sequence: int = 0
    limit: int = 200


@dataclass(frozen=True)
class AgentMessagesPage(StoredValue):
    """One page of messages, oldest first.

    Attributes:
        messages: The messages.
        next_after_sequence: Pass it as `after_sequence` to get the next page.
        has_more: Whether messages follow, also when the page was cut by size.
        sizes: Sizes of the messages asked for; for the client, which asks for what fits.
    """

    messages: tuple[AgentMessage, ...] = ()
    next_after_sequence: int = 0
    has_more: bool = False
    sizes: tuple[int, ...] = field(default=(), kw_only=True, repr=False, compare=False)

    def _repair(self) -> None:
        self._repair_values("messages", AgentMessage)
        self._repair_tuple("sizes")


@dataclass(frozen=True)
class AgentEvent(StoredValue):
    """One live event.

    Attributes:
        type: Kind of event.
        turn_id: Turn it belongs to.
        step_execution_id: Step that wrote it; the same for every attempt of that Step.
        attempt: Attempt of the Step, from 1. Text of a lower attempt is void.
        payload: Facts of the event, by kind.
    """

    type: AgentEventType
    turn_id: str
    step_execution_id: str
    attempt: int
    payload: dict[str, object] = field(default_factory=dict[str, object])

    def _repair(self) -> None:
        self._repair_enum("type", AgentEventType)
