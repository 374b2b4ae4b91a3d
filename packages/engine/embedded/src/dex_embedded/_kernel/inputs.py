"""Everything that can happen to a run. `decide` takes any of these, except `StartFlow`.

A step input names the attempt it speaks of; one that is not the current attempt (cancelled,
superseded, closed run) raises `StaleInputError` and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from dex_embedded._kernel.state import InvocationRef
from dex_embedded._kernel.values import (
    DEFAULT_STEP_OPTIONS,
    NO_ROUTING,
    NOTHING_SELECTED,
    AttributeWrite,
    Durability,
    ExecuteResult,
    Failure,
    IdReusePolicy,
    MessageDeletion,
    Publication,
    Routing,
    RpcResult,
    Selection,
    StepOptions,
    StopType,
    WaitForResult,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFlow:
    """A request to create a run; see `start.plan_start` and `start.start_run`."""

    flow_id: str
    flow_type: str
    request_id: str
    id_reuse_policy: IdReusePolicy = IdReusePolicy.UNSPECIFIED
    ignore_already_started: bool = False
    start_step_type: str = ""
    """Empty: the run starts without a step."""
    start_step_input: bytes = b""
    start_step_options: StepOptions = DEFAULT_STEP_OPTIONS
    start_delay: int = 0
    attributes: tuple[AttributeWrite, ...] = ()
    config: bytes = b""
    """Effective FlowConfig, serialized."""
    default_durability: Durability = Durability.UNSPECIFIED
    timeout: int = 0
    """Not served yet: anything but 0 is refused by name."""
    has_retry_policy: bool = False
    """Not served yet: refused by name."""
    has_timeout_handler: bool = False
    """Not served yet: refused by name."""
    """Any name is unknown to this engine, hence invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHandedOut:
    """A worker stream is about to get the READY attempt.

    Outcome: `HandOut`. When `HandOut.durable_first` is true the frame must not leave before the
    transition is durable. Otherwise it need not wait for that, but for everything decided on the
    run before: the snapshot may show it, and a handler must never act on what a crash could undo.
    """

    ref: InvocationRef
    routing: Routing = NO_ROUTING


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReturned:
    """The worker sent a reject frame: the attempt never ran. Takes the hand-out back: same attempt
    number, no budget consumed, READY again."""

    ref: InvocationRef


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDropped:
    """The worker half-closed its stream without any frame for the handed-out attempt.

    Proves nothing about whether the handler ran, so: a single-attempt method fails (worker lost);
    a retryable one is offered again for free at most 3 times per attempt, then it fails; one that
    had shown progress fails.
    """

    ref: InvocationRef
    had_progress: bool = False
    """Whether a heartbeat or stream write of this attempt arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForSucceeded:
    ref: InvocationRef
    result: WaitForResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteSucceeded:
    ref: InvocationRef
    result: ExecuteResult


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFailed:
    """One attempt failed, in whatever way `failure.kind` says.

    For TIMEOUT and HEARTBEAT_TIMEOUT the transition commands a withdrawal of the worker task.
    """

    ref: InvocationRef
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """An explicit heartbeat. The heartbeat timer itself is the shell's."""

    ref: InvocationRef
    value: bytes | None
    """None clears the checkpoint; a null is a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """`FlowRun.wake_at` has come: fire timers, make retries READY, start a delayed queue.

    Harmless when nothing is due.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """The run was loaded by an engine that did not run it before.

    Attempts in a worker's hands count as lost (single-attempt: failure route; others: next attempt
    at once); READY ones are dispatched; overdue timers fire.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcStarted:
    """InvokeRPC was accepted by the wire.

    Outcome: `RpcDispatch`, `RpcRepeated` or `RpcJoined`. Without locks and not transactional this
    reads only (also on a closed run) and nothing is registered.

    Raises: `LockConflictError`, `FlowNotActiveError`, `InvalidRequestError`.
    """

    call_id: str
    """Unique per call, made by the shell."""
    rpc_name: str
    request_id: str
    input: bytes
    lock_keys: tuple[str, ...] = ()
    transactional: bool = False
    selection: Selection = NOTHING_SELECTED
    recorded: RecordedRequest | None = None
    """What the store remembers under (run, request id); see `Store.request`. Only looked at for
    transactional or locking calls."""

    @property
    def is_update(self) -> bool:
        return self.transactional or bool(self.lock_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcSucceeded:
    """The handler answered.

    Outcome: `RpcCommitted`, or `RpcRefused` when the result cannot be applied (locks are free
    again, nothing else changed). A query call without effects changes nothing; the shell may skip
    the input then and answer at once.
    """

    call: RpcStarted
    result: RpcResult
    served_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcFailed:
    """The handler failed, was lost, or ran out of time: frees the locks. Nothing is durable."""

    call: RpcStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFlow:
    type: StopType = StopType.UNSPECIFIED
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishToChannel:
    """The direct client call. Outcome: the messages, with their ids."""

    messages: tuple[Publication, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteChannelMessage:
    """The direct client call. Raises `ChannelMessageNotFoundError`."""

    deletion: MessageDeletion
    request_id: str
    recorded: RecordedRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAttributes:
    """The direct client call; deduplicated per run by its request id."""

    writes: tuple[AttributeWrite, ...]
    request_id: str
    recorded: RecordedRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipTimer:
    """Counts a pending timer as fired. Exactly one of `condition_id` and `index` is given."""

    step_execution_id: str
    condition_id: str = ""
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig:
    """The merged FlowConfig, for work dispatched from now on."""

    config: bytes
    default_durability: Durability = Durability.UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """The committed result of an update call, kept under its request id for the life of the run."""

    request_id: str
    output: bytes | None


Input = (
    TaskHandedOut
    | TaskReturned
    | TaskDropped
    | WaitForSucceeded
    | ExecuteSucceeded
    | MethodFailed
    | HeartbeatReceived
    | Wake
    | Recover
    | RpcStarted
    | RpcSucceeded
    | RpcFailed
    | StopFlow
    | PublishToChannel
    | DeleteChannelMessage
    | SetAttributes
    | SkipTimer
    | UpdateConfig
)
