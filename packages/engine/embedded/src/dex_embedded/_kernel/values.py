"""Plain values the kernel reads and writes: options, movements, conditions, results, failures.

A Dex `Value` is opaque here: `bytes`, one serialized wire message. The kernel never looks inside.
Where the wire tells *absent* from *null*, the codec has decided already and says so below.
Durations are whole seconds, moments are unix seconds (`float`), as on the wire.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

START_FROM_ID = "__start__"
"""`from_step_execution_id` of the start step."""

RPC_FROM_PREFIX = "__rpc/"
"""`from_step_execution_id` of a step made by RPC `name` is this prefix and the name."""


class FlowStatus(enum.IntEnum):
    """Numbers are those of the wire enum."""

    RUNNING = 1
    COMPLETED = 2
    FAILED = 3
    TERMINATED = 5
    CANCELED = 6
    CONTINUED_AS_NEW = 7


class FlowErrorType(enum.IntEnum):
    """Why a flow failed. Numbers are those of the wire enum; 0 is "no error"."""

    NONE = 0
    STEP_DECISION_FAILING_FLOW = 1
    CLIENT_API_FAILING_FLOW = 2
    WORKER_API_FAIL = 3
    INVALID_USER_FLOW_CODE = 4
    FLOW_TIMEOUT = 5
    INTERNAL = 6


class Method(enum.IntEnum):
    """The two methods of a step execution."""

    WAIT_FOR = 1
    EXECUTE = 2


class Durability(enum.IntEnum):
    """Numbers are those of the wire enum. ASYNC runs like SYNC and is reported as ASYNC."""

    UNSPECIFIED = 0
    SYNC = 1
    ASYNC = 2


class IdReusePolicy(enum.IntEnum):
    """Numbers are those of the wire enum. UNSPECIFIED acts as DISALLOW_REUSE."""

    UNSPECIFIED = 0
    ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY = 1
    ALLOW_IF_NO_RUNNING = 2
    DISALLOW_REUSE = 3
    ALLOW_TERMINATE_IF_RUNNING = 4


class StopType(enum.IntEnum):
    """Numbers are those of the wire enum. UNSPECIFIED acts as CANCEL."""

    UNSPECIFIED = 0
    CANCEL = 1
    TERMINATE = 2
    FAIL = 3


class CloseType(enum.IntEnum):
    """Numbers are those of the wire enum `CloseDecisionType`."""

    UNSPECIFIED = 0
    FORCE_COMPLETE_ON_CHANNELS_EMPTY = 1
    GRACEFUL_COMPLETE = 2
    FORCE_COMPLETE = 3
    FORCE_FAIL = 4
    DEAD_END = 5


class WaitingType(enum.IntEnum):
    """Numbers are those of the wire enum `WaitingConditionType`."""

    UNSPECIFIED = 0
    ALL_COMPLETED = 1
    ANY_COMPLETED = 2
    ANY_COMBINATION_COMPLETED = 3


class TimerStatus(enum.IntEnum):
    """Numbers are those of the wire enum `InternalTimerStatus`."""

    PENDING = 1
    FIRED = 2
    SKIPPED = 3


class IndexType(enum.IntEnum):
    """Numbers are those of the wire enum."""

    KEYWORD = 1
    TEXT = 2
    KEYWORD_ARRAY = 3
    INT = 4
    DOUBLE = 5
    BOOL = 6
    DATETIME = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed attempt of a method is tried again. Zero means the engine's default.

    `effective()` of the module `retry` fills the defaults in.
    """

    initial_interval: int = 0
    backoff_coefficient: float = 0.0
    maximum_interval: int = 0
    maximum_attempts: int = 0
    """Attempts in all, the first one included; 0 is no limit, 1 is no retry."""
    total_duration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a method or RPC loads besides the ordinary attributes. Sorted, no duplicates.

    A map selection is `Name/` (every present instance) or `Name/instance` (exactly that one).
    The three tuples are echoed to the handler as they are.
    """

    attribute_maps: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    channel_maps: tuple[str, ...] = ()


NOTHING_SELECTED = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOptions:
    """Options of one method of a step, already taken apart by method."""

    timeout: int = 0
    """Seconds one attempt may take; 0 is the default of two hours."""
    retry: RetryPolicy = RetryPolicy()
    durability: Durability = Durability.UNSPECIFIED
    lock_keys: tuple[str, ...] = ()
    selection: Selection = NOTHING_SELECTED
    proceed_on_failure: bool = False
    """WaitFor: go on to Execute. Execute: go on to `StepOptions.failure_step_type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """The complete options of one movement.

    Equality and the stored form are by the parsed fields and `wire`, the serialized message, which
    the kernel only hands back (history, state inspection).
    """

    skip_wait_for: bool = False
    heartbeat_timeout: int = 0
    """Longest silence of one attempt in seconds; 0 is the default of 60."""
    wait_for: MethodOptions = MethodOptions()
    execute: MethodOptions = MethodOptions()
    failure_step_type: str = ""
    failure_step_options: StepOptions | None = None
    wire: bytes = b""

    def of(self, method: Method) -> MethodOptions:
        return self.wait_for if method is Method.WAIT_FOR else self.execute


DEFAULT_STEP_OPTIONS = StepOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMovement:
    """One next step as a decision names it."""

    step_type: str
    input: bytes
    """The input `Value`, verbatim (a null input is a serialized null)."""
    options: StepOptions = DEFAULT_STEP_OPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryError:
    """Why a recovery step (or an Execute after a failed WaitFor) runs."""

    detail: str
    error_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWrite:
    """What a write does to the search index; the codec has converted the value already."""

    index_key: str
    type: IndexType
    value: str | int | float | bool | tuple[str, ...] | None
    """None clears the key. KEYWORD_ARRAY is a tuple, DATETIME is unix seconds (`float`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeWrite:
    """One write to an attribute or a map entry."""

    key: str
    value: bytes | None
    """None deletes the key (the wire's null)."""
    index: IndexWrite | None = None
    """None leaves the index alone (not indexed, or a value that cannot be converted)."""
    hard_delete: bool = False
    """Keep the value out of history and erase every trace of it on deletion."""
    echo: bytes = b""
    """The serialized wire `AttributeWrite` without key and value, for history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A message to append to a channel; its id is made by the engine."""

    channel: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeletion:
    """A pending message to remove."""

    channel: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMessage:
    """A pending message. `sequence` orders all messages of one run."""

    channel: str
    message_id: str
    sequence: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeVersion:
    """One stored value of one key.

    `version` counts the writes of the run, so a moment of the run is one number: a version is part
    of the state *as of* `v` when it is not above `v` and nothing at or below `v` replaced it.
    """

    key: str
    version: int
    value: bytes
    hard_delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedWrite:
    """A write as history tells it. `version` is None for a deletion.

    The value itself lives once in the store, under `(run, version)`.
    """

    write: AttributeWrite
    version: AttributeVersion | None


# --- waiting ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerCondition:
    """Fires `duration` whole seconds after the WaitFor result commits."""

    condition_id: str = ""
    duration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCondition:
    """Wants messages of one channel. Presence of the bounds matters: None is not 0."""

    condition_id: str = ""
    channel: str
    at_least: int | None = None
    at_most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCondition:
    """What WaitFor asked to wait for."""

    type: WaitingType
    timers: tuple[TimerCondition, ...] = ()
    channels: tuple[ChannelCondition, ...] = ()
    combinations: tuple[tuple[str, ...], ...] = ()
    """Condition ids of each combination, for ANY_COMBINATION_COMPLETED."""
    sub_flow_count: int = 0
    """Number of SubFlow conditions; more than 0 is refused by name until SubFlows are served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerResult:
    condition_id: str
    completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelResult:
    condition_id: str
    channel: str
    completed: bool
    values: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionResults:
    """What Execute is told about its wait. One entry per condition, in declaration order.

    An execution whose step skips WaitFor has none at all (`None` where this type is expected).
    """

    timers: tuple[TimerResult, ...] = ()
    channels: tuple[ChannelResult, ...] = ()
    wait_for_failed: bool = False


# --- results of methods and RPCs -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseDecision:
    type: CloseType
    channels: tuple[str, ...] = ()
    """Physical channel names, for FORCE_COMPLETE_ON_CHANNELS_EMPTY only."""
    close_input: bytes | None = None
    """The `Value` as sent, a null included; None when the field was absent."""
    output: bytes | None = None
    """The output to collect: `close_input`, but None for a null too. None for FORCE_FAIL."""
    reason: str | None = None
    """FORCE_FAIL: the string in `close_input`; None when `close_input` is present and no string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecision:
    next_steps: tuple[StepMovement, ...] = ()
    close: CloseDecision | None = None
    cancel_step_types: tuple[str, ...] = ()
    cancel_sibling_step_types: tuple[str, ...] = ()


NO_LOCALS: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the results of WaitFor, Execute and RPC have in common. Lists keep the sent order."""

    attribute_writes: tuple[AttributeWrite, ...] = ()
    publications: tuple[Publication, ...] = ()
    deletions: tuple[MessageDeletion, ...] = ()
    recorded_events: tuple[tuple[str, bytes], ...] = ()
    """(name, value) pairs that only go to history."""


NO_EFFECTS = Effects()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForResult:
    effects: Effects = NO_EFFECTS
    condition: WaitingCondition | None = None
    """None: do not wait."""
    locals: tuple[tuple[str, bytes], ...] = ()
    """Step locals for Execute; replaces what was there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteResult:
    effects: Effects = NO_EFFECTS
    decision: StepDecision | None = None
    """None when the field was absent, which is an invalid result."""
    locals: tuple[tuple[str, bytes], ...] = ()
    """Goes to history only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcResult:
    output: bytes | None = None
    """The `Value` for the caller, verbatim; None when absent."""
    effects: Effects = NO_EFFECTS
    decision: StepDecision | None = None

    @property
    def has_effects(self) -> bool:
        """Whether committing this changes anything: writes, deletions, publications, recorded
        events, next steps or cancellations."""
        effects = self.effects
        if effects.attribute_writes or effects.publications or effects.deletions:
            return True
        if effects.recorded_events:
            return True
        decision = self.decision
        return decision is not None and (
            bool(decision.next_steps)
            or bool(decision.cancel_step_types)
            or bool(decision.cancel_sibling_step_types)
            or decision.close is not None
        )


# --- failures --------------------------------------------------------------------------------


class FailureKind(enum.Enum):
    """Why one attempt failed; decides whether and when it is tried again."""

    WORKER_ERROR = "worker_error"
    """The handler raised (also: a worker that drained and cancelled it)."""
    INVALID_RESULT = "invalid_result"
    """A frame that cannot be decoded or a result that breaks a rule of the protocol."""
    TIMEOUT = "timeout"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    WORKER_LOST = "worker_lost"
    """The stream broke, or the engine restarted. The retry skips the back-off."""
    TOO_LARGE = "too_large"
    """The request does not fit a frame. Final: every retry would send the same snapshot."""
    UNSUPPORTED = "unsupported"
    """The result asks for something this engine does not serve. Final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt. Texts are bounded by whoever made them."""

    kind: FailureKind
    detail: str
    """The worker's words, else the engine's. The text of a timeout contains "timeout"."""
    error_type: str = ""
    """The worker's error type; empty for failures the engine found."""
    stack_trace: str = ""
    grpc_status: int = 0
    retry_after: int = 0
    """Seconds that replace one back-off interval; 0 is none."""
    attempt: int = 0
    """Filled in by the kernel."""


# --- routing ---------------------------------------------------------------------------------


class RoutingSource(enum.IntEnum):
    """Numbers are those of the wire enum `PullRoutingSource`."""

    UNSPECIFIED = 0
    STICKY_QUEUE = 1
    FLOW_TYPE_QUEUE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which worker got an attempt, and through which queue."""

    served_by: str = ""
    source: RoutingSource = RoutingSource.UNSPECIFIED
    sticky_worker: str = ""


NO_ROUTING = Routing()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """One collected completion output."""

    step_type: str
    step_execution_id: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult:
    """How a run ended."""

    status: FlowStatus
    outputs: tuple[StepOutput, ...] = field(default=())
    """All outputs of a COMPLETED run; empty for any other status."""
    error_type: FlowErrorType = FlowErrorType.NONE
    error_message: str = ""
