"""History events as the kernel tells them. `_wire` turns them into `FlowHistoryEvent` bytes.

Attributes appear as `AttributeVersion`s: an encoder should store `(key, version)` and let the
reader fetch the value from the store, so that history costs by what changed and not by what a
method was shown. A version with `hard_delete` never appears in stored history.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dex_embedded._kernel.values import (
    AppliedWrite,
    AttributeVersion,
    ChannelMessage,
    ConditionResults,
    Durability,
    ExecuteResult,
    Failure,
    FlowErrorType,
    FlowStatus,
    MessageDeletion,
    Method,
    RetryPolicy,
    Routing,
    RpcResult,
    StepOutput,
    WaitForResult,
)

if TYPE_CHECKING:
    from dex_embedded._kernel.inputs import StartFlow


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEventInput:
    """What the method was given."""

    step_input: bytes
    attributes: tuple[AttributeVersion, ...]
    results: ConditionResults | None
    locals: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEventContext:
    """Who, when, under which limits."""

    step_execution_id: str
    from_step_execution_id: str
    step_type: str
    durability: Durability
    final_attempt: int
    started_at: float | None
    """First hand-out; None when the method was never handed out."""
    duration: float
    """Seconds from `started_at` to the event; 0 without it."""
    timeout: int
    heartbeat_timeout: int
    retry: RetryPolicy
    """Limits in force, defaults filled in."""
    last_failure: Failure | None
    """Failure of the attempt before the final one."""
    routing: Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStarted:
    """First event of a run."""

    run_id: str
    request: StartFlow
    attributes: tuple[AttributeVersion, ...]
    """The initial attributes as stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWaitForCompleted:
    context: StepEventContext
    input: StepEventInput
    result: WaitForResult
    writes: tuple[AppliedWrite, ...]
    published: tuple[ChannelMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExecuteCompleted:
    context: StepEventContext
    input: StepEventInput
    result: ExecuteResult
    writes: tuple[AppliedWrite, ...]
    published: tuple[ChannelMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed:
    """A method failed for good, whatever its failure policy. `method` picks the wire event."""

    method: Method
    context: StepEventContext
    input: StepEventInput
    failure: Failure


class PendingPhase(enum.IntEnum):
    """Numbers are those of the wire enum `PendingStepMethodPhase`."""

    SCHEDULED = 1
    STARTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPending:
    """At close: a method that had no outcome yet."""

    method: Method
    context: StepEventContext
    input: StepEventInput
    phase: PendingPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcCompleted:
    """A transactional or locking RPC, or one with effects, or a direct attribute write."""

    rpc_name: str
    input: bytes | None
    result: RpcResult
    writes: tuple[AppliedWrite, ...]
    published: tuple[ChannelMessage, ...]
    served_by: str = ""
    is_set_attributes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPublished:
    messages: tuple[ChannelMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDeleted:
    deletions: tuple[MessageDeletion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowClosed:
    """Last event of a run."""

    status: FlowStatus
    outputs: tuple[StepOutput, ...]
    """All outputs collected so far, for every status."""
    error_type: FlowErrorType
    error_message: str
    sticky_worker: str


EventPayload = (
    FlowStarted
    | StepWaitForCompleted
    | StepExecuteCompleted
    | StepFailed
    | StepPending
    | RpcCompleted
    | ChannelPublished
    | ChannelDeleted
    | FlowClosed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One event. Ids start at 1 per run and rise by 1."""

    event_id: int
    event_time: float
    run_attempt: int
    payload: EventPayload
