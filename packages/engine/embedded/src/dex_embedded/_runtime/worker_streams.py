"""Pull workers and their streams, as the engine sees them.

A worker opens many streams; each belongs to one queue (its own id, or one of its Flow types) and
carries one task at a time. What a stream may carry next is in its `Phase`:

    SPARE --acknowledge--> IDLE --offer--> OFFERED --final or reject--> IDLE
                                              |
                                              +--give up--> ABANDONED --final--> IDLE
    any of them --half-close or loss--> CLOSED

A stream is acknowledged late on purpose. The worker opens a replacement for every busy stream, and
retires an idle one as soon as it holds more *acknowledged* idle streams than it was told to. So if
every stream were acknowledged at once, each task would cost one opened and one retired stream.
Instead a pool acknowledges as many as the worker keeps idle, and holds the rest as spares until
running tasks turn out to be long. How fast things go depends on this, and no result does.

A stream the worker has not read a task on yet is idle in its eyes. So a task counts as running only
when the worker has answered a ping sent after it. A stream beyond those the worker keeps is used,
or used again, only after it has answered one, since otherwise it may be retired at that moment.

One pool of each worker, that of its own queue, never acknowledges more than that. So its streams
are never retired, and a task that must not be lost without an answer goes out there. When they are
all busy, it goes out on another stream, but only on one that has answered a ping, and while no
acknowledgement is under way that could make the worker see one stream too many.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

MAXIMUM_ACKNOWLEDGED: Final = 8
"""More idle streams per queue than this cost the worker more than they bring."""


class Phase(enum.Enum):
    SPARE = "spare"
    IDLE = "idle"
    OFFERED = "offered"
    ABANDONED = "abandoned"
    CLOSED = "closed"


class TaskClass(enum.Enum):
    """Workers keep a reserve for RPCs, so the two classes find capacity separately."""

    STEP = "step"
    RPC = "rpc"


@dataclass(frozen=True, slots=True)
class Registered:
    """Accepts the stream."""


@dataclass(frozen=True, slots=True)
class CancelTask:
    task_id: str


@dataclass(frozen=True, slots=True)
class Reconnect:
    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class TaskFrame:
    """A task, already encoded and checked for size."""

    payload: bytes
    subject: str


OutgoingFrame: TypeAlias = Registered | CancelTask | Reconnect | Ping | TaskFrame


@dataclass(eq=False, slots=True)
class WorkerTask:
    """One attempt of a method, or one RPC call, that waits for a worker.

    Attributes:
        flow_type: Only workers that registered it are asked.
        name: The Step type or the RPC name; a worker may not know it.
        profile: What is averaged to tell long tasks from short ones, e.g. `RunModel.execute`.
        single_attempt: True if a lost task may not be handed out again.
        sticky_worker: The worker that served this flow last, or empty.
        reference: The engine's own handle on what the task is for.
    """

    flow_type: str
    name: str
    profile: str
    task_class: TaskClass
    reference: object
    single_attempt: bool = False
    sticky_worker: str = ""
    queued_at: float = 0.0
    unknown_to: set[str] = field(default_factory=set[str])
    offer: Offer | None = None
    withdrawn: bool = False


@dataclass(eq=False, slots=True)
class Offer:
    """A task on its way to, or in the hands of, a worker."""

    task: WorkerTask
    stream: WorkerStream
    task_id: str
    offered_at: float
    idle_before: float
    """How long the stream had been idle when it was chosen, in seconds."""
    sent: bool = False
    """The frame went to the transport: from here on it cannot be proved that nothing ran."""
    asked: bool = False
    """The worker was pinged after the frame; its answer means that it has read the task."""
    counted_running: bool = False
    guarded: bool = False
    """Its pool acknowledges no stream until the worker has read the task."""
    probe: bool = False
    """Made beyond the capacity this worker last showed, to find out whether it has grown."""
    gave_up: bool = False


@dataclass(eq=False, slots=True)
class WorkerStream:
    """One open stream. `send` puts a frame in the stream's outgoing line; it never blocks."""

    pool: StreamPool
    send: Callable[[OutgoingFrame], None]
    close: Callable[[], None]
    phase: Phase = Phase.SPARE
    idle_since: float = 0.0
    last_frame_at: float = 0.0
    pinged_at: float = 0.0
    confirmed: bool = False
    """The worker has answered a ping since the stream became idle."""
    asked_at: float = float("-inf")
    """When it was last asked to."""
    offer: Offer | None = None
    is_leaving: bool = False
    """It gets no more tasks, and ends with the one it carries."""
    unsaved: int = 0
    """Bytes it sent that may not be on disk yet."""

    @property
    def worker(self) -> Worker:
        return self.pool.worker

    @property
    def queue(self) -> str:
        return self.pool.queue


@dataclass(eq=False, slots=True)
class StreamPool:
    """The streams of one worker on one queue."""

    worker: Worker
    queue: str
    spares: dict[WorkerStream, None] = field(default_factory=dict["WorkerStream", None])
    acknowledged: dict[WorkerStream, None] = field(default_factory=dict["WorkerStream", None])
    idle: dict[WorkerStream, None] = field(default_factory=dict["WorkerStream", None])
    """Acknowledged streams without a task, the longest idle first."""
    running: int = 0
    """Tasks the worker is known to be running, and not to be done with at once."""
    unproven: set[WorkerStream] = field(default_factory=set["WorkerStream"])
    """Streams beyond those the worker keeps, whose acknowledgement it may not have read yet. Until
    it has, it may come to see one stream too many, and retire any of them."""
    guards: int = 0
    """Offers out that must not meet such a moment."""
    was_used: bool = False

    @property
    def is_steady(self) -> bool:
        """Whether the pool never acknowledges more streams than the worker keeps idle."""
        return self.queue == self.worker.worker_id

    @property
    def missing(self) -> int:
        """How many spares should be acknowledged now."""
        running = 0 if self.is_steady else self.running
        return self.worker.kept_idle - (len(self.acknowledged) - running)

    @property
    def may_retire(self) -> bool:
        """Whether the worker may be about to retire one of these streams."""
        return len(self.acknowledged) > self.worker.kept_idle

    def stream_opened(self) -> None:
        """Learns from an opening: before the first task, all open streams are idle ones."""
        if not self.was_used:
            count = len(self.spares) + len(self.acknowledged)
            self.worker.kept_idle = min(max(self.worker.kept_idle, count), MAXIMUM_ACKNOWLEDGED)

    def stream_retired(self) -> None:
        """Learns from a retirement: more were acknowledged than the worker keeps."""
        if not self.running:
            fewer = len(self.acknowledged) - 1
            self.worker.kept_idle = max(1, min(self.worker.kept_idle, fewer))


@dataclass(eq=False, slots=True)
class Capacity:
    """What one worker takes of one class of tasks, learned from its rejections."""

    limit: int | None = None
    """Busy tasks at which it last declined, or `None` if it never did."""
    probe_at: float = 0.0
    pause: float = 0.0

    def may_offer(self, busy: int, now: float) -> bool:
        return self.limit is None or busy < self.limit or now >= self.probe_at

    def declined(self, busy: int, now: float) -> None:
        self.limit = busy
        self.pause = min(max(self.pause * 2, 0.05), 1.0)
        self.probe_at = now + self.pause

    def probe_succeeded(self) -> None:
        self.limit = None
        self.pause = 0.0


@dataclass(eq=False, slots=True)
class Worker:
    """One worker process, known by the id it chose.

    `kept_idle` is how many idle streams the worker keeps per queue. It never says so; it is learned
    from what it opens before it has anything to do, and corrected when it retires a stream.
    """

    worker_id: str
    flow_types: frozenset[str]
    born_at: float
    kept_idle: int = 1
    pools: dict[str, StreamPool] = field(default_factory=dict[str, StreamPool])
    unknown_names: set[tuple[str, TaskClass, str]] = field(
        default_factory=set[tuple[str, TaskClass, str]]
    )
    busy: int = 0
    capacity: dict[TaskClass, Capacity] = field(
        default_factory=lambda: {kind: Capacity() for kind in TaskClass}
    )

    def knows(self, task: WorkerTask) -> bool:
        return (task.flow_type, task.task_class, task.name) not in self.unknown_names

    def has_streams(self) -> bool:
        return any(pool.spares or pool.acknowledged for pool in self.pools.values())
