"""What the runtime may ask of a store.

**Threads and the loop.** All methods are called on the event loop's thread and none blocks on the
disk: statements run at once in the open transaction, the COMMIT runs in the store's own thread,
and rows staged during a COMMIT wait in memory for the next one. The store starts no task; it
schedules callbacks on the loop it was opened on. Reads use a second, read-only connection: they
see committed rows only. So keep a run resident until its last ticket is durable, and read only
runs that are not resident.

**Failure.** A COMMIT or statement that fails leaves memory ahead of the disk. The store then
refuses everything, `on_failure` is called once, and waiting tickets raise `StoreFailedError`;
the engine has to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dex_embedded._kernel.inputs import RecordedRequest
from dex_embedded._kernel.state import FlowRun
from dex_embedded._kernel.transition import Transition
from dex_embedded._kernel.values import FlowStatus, IndexType


class Ticket(Protocol):
    """Stands for one staged piece of work until it is durable."""

    @property
    def is_durable(self) -> bool: ...

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Call back on the loop once durable; at once when it is already.

        Callbacks run in the order the work was staged. They are never called after a failure.
        """
        ...

    async def wait(self) -> None:
        """Return once durable. Cancelling the waiter cancels nothing else.

        Raises:
            StoreFailedError: It can never become durable.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The facts of one run that need no state."""

    key: int
    flow_id: str
    run_id: str
    first_run_id: str
    run_attempt: int
    flow_type: str
    request_id: str
    status: FlowStatus
    started_at: float
    closed_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedValue:
    """One entry of the search index of a run."""

    index_key: str
    type: IndexType
    value: str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    summary: RunSummary
    indexed: tuple[IndexedValue, ...]
    """Sorted by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    event_id: int
    payload: bytes
    """As the event encoder made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamScope:
    """Shares one capacity among all flow ids."""

    flow_type: str
    stream_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMessage:
    """Ids rise over all streams and restarts and are never used twice."""

    id: int
    value: bytes
    source: str
    created_at: float


class Store(Protocol):
    # --- writing ---

    def new_run_key(self) -> int:
        """A primary key for a new run, never given before (`Moment.new_run_key`)."""
        ...

    def stage(self, *transitions: Transition, hurried: bool = True) -> Ticket:
        """Take the changes of one or more transitions as one atomic piece of work.

        With `hurried` false nobody waits for it: it goes with the next commit, or with one of its
        own after some milliseconds.

        Call it right after `decide`, before the next decision on the same run. Nothing of the
        transitions is needed afterwards.

        Raises:
            StoreFailedError: The store has failed before.
        """
        ...

    def append_stream_message(
        self,
        scope: StreamScope,
        flow_id: str,
        *,
        value: bytes,
        source: str,
        created_at: float,
        capacity: int,
        hurried: bool = True,
    ) -> tuple[int, Ticket]:
        """Append to a stream and trim its scope; returns the message id and the ticket.

        A message costs its value, flow id, source and 512 bytes. At 90 % of `capacity` the oldest
        messages of the scope go until 80 % are left, never the new one. Readers see the message
        once the ticket is durable; `hurried` is that of `stage`.

        Raises:
            StreamCapacityError: The message alone does not fit the capacity.
        """
        ...

    def declare_indexes(self, types: Mapping[str, IndexType]) -> Ticket:
        """Record index keys.

        Raises:
            IndexTypeConflictError: A key is known with another type. Nothing is recorded.
        """
        ...

    # --- reading: runs ---

    def summary(self, flow_id: str, run_id: str = "") -> RunSummary | None:
        """The run, or with an empty run id the flow's current or latest one."""
        ...

    def load(self, run_key: int) -> FlowRun:
        """The whole state of a run, ready for `decide`.

        Raises:
            KeyError: There is no such run.
        """
        ...

    def request(self, run_key: int, request_id: str) -> RecordedRequest | None:
        """What was answered to an update call. Sees staged work too."""
        ...

    def runs_to_recover(self) -> list[RunSummary]:
        """Running runs with a method in progress or pending: those that need `Recover` now.

        Parked runs, whose executions all wait, are not among them.
        """
        ...

    def wakes(self, before: float, limit: int) -> list[tuple[float, RunSummary]]:
        """Running runs whose `wake_at` is before the given time, earliest first."""
        ...

    def search(self, query: str, *, limit: int, after: str, include_continued: bool) -> SearchPage:
        """Runs that match a search query, newest start first.

        Args:
            query: Text of the query language; empty matches all.
            limit: Most runs to return; at least 1.
            after: `SearchPage.next` of the page before, or empty.
            include_continued: Whether runs replaced by continue-as-new count.

        Raises:
            InvalidRequestError: Syntax error, unknown field, or a foreign `after`.
        """
        ...

    def index_types(self) -> Mapping[str, IndexType]: ...

    # --- reading: history ---

    def history(self, run_key: int, start_event_id: int, limit: int) -> Sequence[StoredEvent]:
        """Events with an id of at least `start_event_id`, in order."""
        ...

    def last_event_id(self, run_key: int) -> int:
        """0 when there is none."""
        ...

    def attribute_values(self, run_key: int, versions: Iterable[int]) -> dict[int, bytes]:
        """The values stored under these versions; erased ones are left out."""
        ...

    # --- reading: streams ---

    def next_stream_message(
        self, scope: StreamScope, flow_id: str, after_id: int
    ) -> StreamMessage | None:
        """The oldest retained message of the flow id with an id above `after_id`."""
        ...

    def list_stream_messages(
        self, scope: StreamScope, flow_id: str, before_id: int | None, limit: int
    ) -> Iterator[StreamMessage]:
        """Newest first, ids below `before_id` (None: from the newest)."""
        ...

    def has_stream_message(self, scope: StreamScope, flow_id: str, message_id: int) -> bool:
        """Whether the message is still retained."""
        ...

    # --- end ---

    @property
    def log_bytes(self) -> int:
        """Size of the log beside the data file."""
        ...

    def cut_log(self) -> None:
        """Begin to move the log into the data file and to cut it, as far as no reader is in the
        way. Returns at once."""
        ...

    async def close(self) -> None:
        """Make staged work durable and let go of the file. Twice is harmless."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    runs: tuple[FoundRun, ...]
    next: str
    """Empty on the last page."""
