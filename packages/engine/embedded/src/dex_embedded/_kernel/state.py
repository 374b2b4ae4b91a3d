"""The state of one flow run.

One `FlowRun` is owned by one mailbox. `decide` changes it in place, and only after every check of
the input has passed; everybody else reads. What has to survive a restart is exactly what
`_store` writes; fields marked *memory only* are rebuilt or empty after a load.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from dex_embedded._kernel.values import (
    NO_ROUTING,
    NOTHING_SELECTED,
    AttributeVersion,
    ChannelMessage,
    ConditionResults,
    Durability,
    Failure,
    FlowErrorType,
    FlowResult,
    FlowStatus,
    Method,
    RecoveryError,
    Routing,
    Selection,
    StepMovement,
    StepOptions,
    StepOutput,
    TimerStatus,
    WaitingCondition,
)


class Phase(enum.IntEnum):
    """Where a step execution stands."""

    LOCKED_OUT = 1
    """Its next method waits for attribute locks; no attempt and no budget is consumed."""
    READY = 2
    """Its next attempt can be offered to a worker."""
    HANDED_OUT = 3
    """An attempt is in a worker's hands."""
    BACKING_OFF = 4
    """An attempt failed; the next one becomes READY at `Invocation.retry_at`."""
    WAITING = 5
    """WaitFor is done; the condition is not met yet. Evictable."""


_BUSY_PHASES = frozenset({Phase.LOCKED_OUT, Phase.READY, Phase.HANDED_OUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationRef:
    """Names one attempt of one method of one step execution."""

    step_execution_id: str
    method: Method
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state one method sees, on its first attempt and on every retry.

    Holds references to immutable values, so it costs a tuple, not a copy.
    """

    as_of: int
    """Attribute version counter of the run when the snapshot was taken."""
    attributes: tuple[AttributeVersion, ...]
    """Ordinary attributes and selected map entries, by key, each key once."""
    channel_sizes: tuple[tuple[str, int], ...]
    """(channel, pending messages) of every non-empty channel, by name."""
    messages: tuple[tuple[str, tuple[ChannelMessage, ...]], ...]
    """Pending messages of the selected channels, FIFO, by name. Empty queues are left out: the
    SDK reads a selected queue that is absent as empty."""
    selection: Selection = NOTHING_SELECTED
    """To be echoed to the handler."""


@dataclass(slots=True, kw_only=True)
class Invocation:
    """One method call of one step execution, over all its attempts."""

    attempt: int = 1
    """The attempt that is, or will next be, in a worker's hands."""
    first_attempt_at: float | None = None
    """When attempt 1 was handed out; the same for all attempts, also after a restart."""
    handed_out_at: float | None = None
    """When the current attempt was handed out; None while it is not."""
    retry_at: float | None = None
    """When the next attempt becomes READY; only while BACKING_OFF."""
    last_failure: Failure | None = None
    heartbeat: bytes | None = None
    """The checkpoint the next attempt gets. None is "absent", a stored null is its bytes."""
    received_heartbeat: bytes | None = None
    """What the current attempt was given; fixed when the attempt number was."""
    snapshot: Snapshot | None = None
    """Taken when attempt 1 is handed out."""
    free_reoffers: int = 0
    """Offers of the current attempt that ended without a frame and were not counted."""
    ready_since: float | None = None
    """Since when the current attempt can be offered; None before, and while it is handed out."""
    waited: float = 0.0
    """Seconds the retries of this invocation waited for a worker; not part of its time budget."""
    lock_order: int = 0
    """Place among the invocations that wait for locks; 0 when it never had to."""
    routing: Routing = NO_ROUTING
    is_suspect: bool = field(default=False, compare=False)
    """An engine ended while it was ready or in a worker's hands: it may be what ended the engine,
    so from then on its hand-outs are counted. Memory only."""


@dataclass(slots=True, kw_only=True)
class Timer:
    """One timer of a wait. Whole unix seconds; fires when the clock has reached them."""

    firing_at: int
    status: TimerStatus = TimerStatus.PENDING


@dataclass(slots=True, kw_only=True)
class Wait:
    """A registered waiting condition."""

    condition: WaitingCondition
    timers: list[Timer] = field(default_factory=list[Timer])
    """One per `condition.timers`, same order."""


@dataclass(slots=True, kw_only=True)
class StepExecution:
    """One execution of a step, from start to end."""

    ordinal: int
    """Position in the order in which executions of this run were started, from 1."""
    step_type: str
    number: int
    from_id: str
    input: bytes
    options: StepOptions
    recovery_error: RecoveryError | None = None
    """Given to both methods of a recovery step."""
    method: Method
    phase: Phase
    invocation: Invocation | None = None
    """None only while WAITING."""
    wait: Wait | None = None
    """Only while WAITING."""
    results: ConditionResults | None = None
    """For Execute. None when WaitFor was skipped."""
    wait_for_error: RecoveryError | None = None
    """Why WaitFor failed, when the step proceeds to Execute after that."""
    locals: tuple[tuple[str, bytes], ...] = ()
    consumed: tuple[tuple[str, int], ...] = ()
    """(channel, messages) its wait consumed and its Execute has not answered for yet."""
    held_locks: tuple[str, ...] = ()
    wait_for_routing: Routing = NO_ROUTING
    id: str = field(init=False)
    """Step type and number; fixed."""

    def __post_init__(self) -> None:
        self.id = f"{self.step_type}-{self.number}"

    @property
    def ref(self) -> InvocationRef:
        """The current attempt.

        Raises:
            ValueError: The execution is WAITING, so it has none.
        """
        if self.invocation is None:
            raise ValueError(f"{self.id} is in no method")
        return InvocationRef(
            step_execution_id=self.id, method=self.method, attempt=self.invocation.attempt
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedStep:
    """A movement that has not started: only during a start delay."""

    movement: StepMovement
    from_id: str
    recovery_error: RecoveryError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcCall:
    """A transactional or locking RPC in a worker's hands. Memory only."""

    call_id: str
    request_id: str
    lock_keys: tuple[str, ...]


class AttributeSource(Protocol):
    """Where map entries come from that are not in memory yet; the store's side of `AttributeTable`.

    It answers from the state the run was loaded with. What has changed since is in the table.
    """

    def entry(self, key: str) -> AttributeVersion | None:
        """The entry with exactly this key."""
        ...

    def entries(self, map_name: str) -> Iterable[AttributeVersion]:
        """All entries of a map."""
        ...

    def everything(self) -> Iterable[AttributeVersion]:
        """All entries of all maps."""
        ...


class AttributeTable:
    """The attributes of one run: ordinary ones together, map entries by map.

    A key without `/` is ordinary; any other belongs to the map before its first `/`. Ordinary
    attributes are always in memory. With a source, map entries are fetched when they are first
    asked for: one by one, or a map as a whole; so a large map costs by the keys that are used.
    """

    __slots__ = ("_absent", "_complete", "_maps", "_ordinary", "_source")

    def __init__(
        self, versions: Iterable[AttributeVersion] = (), source: AttributeSource | None = None
    ) -> None:
        self._ordinary: dict[str, AttributeVersion] = {}
        self._maps: dict[str, dict[str, AttributeVersion]] = {}
        self._absent: set[str] = set()
        """Keys known not to be there, whatever the source says."""
        self._complete: set[str] = set()
        """Maps the source has nothing to add to."""
        self._source = source
        for version in versions:
            self.put(version)

    def get(self, key: str) -> AttributeVersion | None:
        name, slash, _ = key.partition("/")
        if not slash:
            return self._ordinary.get(key)
        version = self._maps.get(name, {}).get(key)
        if version is None and self._may_have(name) and key not in self._absent:
            assert self._source is not None
            version = self._source.entry(key)
            if version is None:
                self._absent.add(key)
            else:
                self._maps.setdefault(name, {})[key] = version
        return version

    def put(self, version: AttributeVersion) -> None:
        name, slash, _ = version.key.partition("/")
        entries = self._maps.setdefault(name, {}) if slash else self._ordinary
        entries[version.key] = version
        self._absent.discard(version.key)

    def remove(self, key: str) -> AttributeVersion | None:
        """Take the key away; None when it was not there."""
        version = self.get(key)
        if version is None:
            return None
        name, slash, _ = key.partition("/")
        if not slash:
            return self._ordinary.pop(key)
        entries = self._maps[name]
        del entries[key]
        if not entries:
            del self._maps[name]
        if self._may_have(name):
            self._absent.add(key)
        return version

    def ordinary(self) -> Iterable[AttributeVersion]:
        return self._ordinary.values()

    def entries(self, map_name: str) -> Iterable[AttributeVersion]:
        """All entries of one map, in no particular order."""
        if self._may_have(map_name):
            assert self._source is not None
            self._add(self._source.entries(map_name))
            self._complete.add(map_name)
        return self._maps.get(map_name, {}).values()

    def _may_have(self, map_name: str) -> bool:
        """Whether the source may have entries of the map that are not here."""
        return self._source is not None and map_name not in self._complete

    def _add(self, versions: Iterable[AttributeVersion]) -> None:
        """Take versions from the source, unless something newer is known of their keys."""
        for version in versions:
            name = version.key.partition("/")[0]
            if name in self._complete or version.key in self._absent:
                continue
            self._maps.setdefault(name, {}).setdefault(version.key, version)

    def _load_everything(self) -> None:
        if self._source is not None:
            self._add(self._source.everything())
            self._absent.clear()
            self._source = None

    def __iter__(self) -> Iterator[AttributeVersion]:
        """Every attribute, ordinary ones first. Loads everything."""
        self._load_everything()
        return self.in_memory()

    def in_memory(self) -> Iterator[AttributeVersion]:
        """What is in memory now, ordinary attributes first."""
        yield from self._ordinary.values()
        for entries in self._maps.values():
            yield from entries.values()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttributeTable):
            return NotImplemented
        self._load_everything()
        other._load_everything()
        return self._ordinary == other._ordinary and self._maps == other._maps

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"<AttributeTable {len(self._ordinary)} ordinary, {len(self._maps)} maps in memory>"


@dataclass(slots=True, kw_only=True)
class FlowRun:
    """Everything the engine knows about one run."""

    key: int
    """Primary key in the store; never reused."""
    flow_id: str
    run_id: str
    first_run_id: str
    run_attempt: int = 1
    flow_type: str
    request_id: str
    """Request id of the start that created the run."""
    started_at: float
    config: bytes = b""
    """The effective FlowConfig, serialized; opaque."""
    default_durability: Durability = Durability.UNSPECIFIED

    status: FlowStatus = FlowStatus.RUNNING
    closed_at: float | None = None
    error_type: FlowErrorType = FlowErrorType.NONE
    error_message: str = ""
    outputs: list[StepOutput] = field(default_factory=list[StepOutput])
    completing: bool = False
    """Some execution asked for graceful completion."""

    attributes: AttributeTable = field(default_factory=AttributeTable)
    attribute_clock: int = 0
    """Number of attribute writes and deletions so far; the newest version."""
    channels: dict[str, deque[ChannelMessage]] = field(
        default_factory=dict[str, "deque[ChannelMessage]"]
    )
    """Pending messages; an empty queue is not in the map."""
    message_clock: int = 0
    retained: dict[int, ChannelMessage] = field(default_factory=dict[int, ChannelMessage])
    """Messages no longer pending that a snapshot still shows, by sequence."""

    queue: list[QueuedStep] = field(default_factory=list[QueuedStep])
    start_due_at: float | None = None
    """When the queue starts, during a start delay."""
    steps: dict[str, StepExecution] = field(default_factory=dict[str, StepExecution])
    """Active executions by id, in the order they started."""
    step_clock: int = 0
    step_counts: dict[str, int] = field(default_factory=dict[str, int])
    """Executions started so far, by step type."""
    event_clock: int = 0
    """Id of the newest history event."""
    lock_clock: int = 0
    """Invocations that had to queue for locks so far."""
    sticky_worker: str = ""
    has_old_versions: bool = False
    """Whether the store keeps replaced attribute versions for a snapshot in use."""

    locks: dict[str, str] = field(default_factory=dict[str, str])
    """Attribute key -> holder: a step execution id, or `rpc:` and a call id."""
    rpcs: dict[str, RpcCall] = field(default_factory=dict[str, RpcCall])
    """Transactional and locking RPCs in flight, by call id. Memory only."""

    stored_marks: tuple[bool, float | None] | None = field(default=None, compare=False)
    """`is_busy` and `wake_at` as last given to the store. Memory only."""

    @property
    def is_active(self) -> bool:
        return self.status is FlowStatus.RUNNING

    @property
    def is_busy(self) -> bool:
        """Whether an engine that starts has to look at the run at once, not when its time comes:
        some method is in progress, pending, or waits for locks."""
        return any(step.phase in _BUSY_PHASES for step in self.steps.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is going on that lives in memory alone, so the run may be evicted once
        its last transition is durable: every execution waits, no RPC is in flight."""
        return not self.rpcs and all(step.phase is Phase.WAITING for step in self.steps.values())

    @property
    def wake_at(self) -> float | None:
        """When the run next wants a `Wake`: its earliest pending timer, retry or delayed start."""
        due = [self.start_due_at] if self.start_due_at is not None else []
        for step in self.steps.values():
            if step.phase is Phase.BACKING_OFF and step.invocation is not None:
                if step.invocation.retry_at is not None:
                    due.append(step.invocation.retry_at)
            elif step.wait is not None:
                due.extend(
                    timer.firing_at
                    for timer in step.wait.timers
                    if timer.status is TimerStatus.PENDING
                )
        return min(due, default=None)

    @property
    def result(self) -> FlowResult:
        """The result as WaitForFlow reports it; outputs only when COMPLETED."""
        outputs = tuple(self.outputs) if self.status is FlowStatus.COMPLETED else ()
        return FlowResult(
            status=self.status,
            outputs=outputs,
            error_type=self.error_type,
            error_message=self.error_message,
        )

    def step_completed(self, step_type: str, number: int) -> bool:
        """Whether execution `number` of the type has started and is over, in whatever way."""
        started = self.step_counts.get(step_type, 0)
        return 1 <= number <= started and f"{step_type}-{number}" not in self.steps

    def __repr__(self) -> str:
        return (
            f"<FlowRun {self.flow_id} {self.run_id} {self.status.name}"
            f" steps={list(self.steps)} events={self.event_clock}>"
        )
