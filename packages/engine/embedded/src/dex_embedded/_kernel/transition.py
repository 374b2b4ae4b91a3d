"""What a decision answers: rows to write, things to do after they are durable, an outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dex_embedded._kernel.errors import KernelError
from dex_embedded._kernel.events import HistoryEvent
from dex_embedded._kernel.inputs import RecordedRequest
from dex_embedded._kernel.state import FlowRun, InvocationRef, Snapshot, StepExecution
from dex_embedded._kernel.values import (
    AttributeVersion,
    ChannelMessage,
    ConditionResults,
    IndexWrite,
    Method,
    RecoveryError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of the engine that a decision depends on."""

    minimum_heartbeat_timeout: int = 10
    """Smallest explicit heartbeat timeout a step may ask for, in seconds; tests lower it."""


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The outside world a decision may see."""

    now: float
    """Wall clock, unix seconds."""
    new_id: Callable[[], str]
    """Unique, time-ordered ids (UUIDv7 style) for runs and messages."""
    new_run_key: Callable[[], int]
    """Primary key for a new run; see `Store.new_run_key`."""
    limits: Limits = DEFAULT_LIMITS


# --- rows ------------------------------------------------------------------------------------
# Changes may refer to live state, so the store must turn them into statements before the next
# decision on the same run: call `Store.stage` right after `decide`.


@dataclass(frozen=True, slots=True)
class InsertRun:
    run: FlowRun


@dataclass(frozen=True, slots=True)
class UpdateRun:
    """Write the changing part of the run's row. `bulk`: also config, outputs and delayed queue."""

    run: FlowRun
    bulk: bool


@dataclass(frozen=True, slots=True)
class PutStep:
    """Insert the row of an active execution, or update its changing part. `given`: also its
    condition results and locals."""

    step: StepExecution
    is_new: bool
    given: bool


@dataclass(frozen=True, slots=True)
class DeleteStep:
    ordinal: int


@dataclass(frozen=True, slots=True)
class PutAttribute:
    version: AttributeVersion
    replaces: AttributeVersion | None
    retain: bool
    """A snapshot in use may still show the replaced version."""


@dataclass(frozen=True, slots=True)
class DeleteAttribute:
    replaces: AttributeVersion
    at_version: int
    """The deletion's own place in the run's count of writes."""
    retain: bool
    """A snapshot in use may still show the deleted version."""


@dataclass(frozen=True, slots=True)
class ForgetOldVersions:
    """No snapshot is in use any more: replaced versions need no place in the table of keys."""


@dataclass(frozen=True, slots=True)
class AddMessage:
    message: ChannelMessage


@dataclass(frozen=True, slots=True)
class RemoveMessage:
    """The message is not pending any more. `retain`: a snapshot still shows it, keep the row until
    the same change comes without it."""

    sequence: int
    retain: bool


@dataclass(frozen=True, slots=True)
class PutIndexEntry:
    """Set or clear (value None) one entry of the search index."""

    write: IndexWrite


@dataclass(frozen=True, slots=True)
class RecordRequest:
    request: RecordedRequest


@dataclass(frozen=True, slots=True)
class AppendEvent:
    event: HistoryEvent


Change = (
    InsertRun
    | UpdateRun
    | PutStep
    | DeleteStep
    | PutAttribute
    | DeleteAttribute
    | ForgetOldVersions
    | AddMessage
    | RemoveMessage
    | PutIndexEntry
    | RecordRequest
    | AppendEvent
)


# --- commands: to be carried out in order, after the transition is durable ---------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchStep:
    """The attempt is READY: queue it for a worker. Given exactly once each time one becomes READY
    (first time, after a lock, a back-off, a reject, a drop, a restart)."""

    ref: InvocationRef
    step_type: str
    single_attempt: bool
    """The hand-out must be durable before the frame is sent; offer it on a quiet stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawStep:
    """The attempt is over for the engine: unqueue it, or cancel it at its worker and drop whatever
    the worker still sends."""

    ref: InvocationRef
    handed_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawRpc:
    """The run closed under a transactional RPC: cancel its worker task and answer the caller with
    FLOW_NOT_EXISTS."""

    call_id: str


Command = DispatchStep | WithdrawStep | WithdrawRpc


# --- outcomes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOut:
    """Everything a task frame needs, for the wire to encode."""

    ref: InvocationRef
    method: Method
    durable_first: bool
    """Whether the attempt may reach a worker only once the store knows of it."""
    flow_id: str
    run_id: str
    run_attempt: int
    flow_type: str
    flow_started_at: float
    step_type: str
    from_step_execution_id: str
    step_input: bytes
    first_attempt_at: float
    snapshot: Snapshot
    locals: tuple[tuple[str, bytes], ...]
    results: ConditionResults | None
    """Execute only; None when WaitFor was skipped."""
    recovery_error: RecoveryError | None
    last_heartbeat: bytes | None
    deadline: float
    """Wall clock: end of the attempt; the smaller of attempt timeout and total duration."""
    heartbeat_timeout: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcDispatch:
    """Send the call to a worker with this snapshot."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRepeated:
    """The request id was committed before: answer this, run nothing."""

    output: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcJoined:
    """The same request id is in flight as `call_id`: share its answer, run nothing."""

    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcCommitted:
    output: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRefused:
    """The result was not applied; the locks are free."""

    error: KernelError


Outcome = (
    HandOut
    | RpcDispatch
    | RpcRepeated
    | RpcJoined
    | RpcCommitted
    | RpcRefused
    | tuple[ChannelMessage, ...]
    | None
)


@dataclass(slots=True, kw_only=True)
class Transition:
    """The answer of one decision."""

    run: FlowRun
    changes: list[Change] = field(default_factory=list[Change])
    """Empty: nothing to make durable."""
    commands: list[Command] = field(default_factory=list[Command])
    outcome: Outcome = None
    wake_at: float | None = None
    """`run.wake_at` after the decision; arm the run's one timer to it."""
    closed: bool = False
    """The run closed in this transition."""
    written_keys: list[str] = field(default_factory=list[str])
    """Attribute keys written or deleted, for waits on attributes."""
    ended_steps: list[str] = field(default_factory=list[str])
    """Executions that are over, for waits on step completion."""
