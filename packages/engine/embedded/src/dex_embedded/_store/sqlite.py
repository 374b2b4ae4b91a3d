"""The SQLite store: one file in WAL mode, one writer, group commit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, Literal

from dex_embedded._kernel.events import HistoryEvent
from dex_embedded._kernel.inputs import RecordedRequest
from dex_embedded._kernel.state import FlowRun
from dex_embedded._kernel.transition import RecordRequest, Transition
from dex_embedded._kernel.values import IndexType
from dex_embedded._store import reading, streams
from dex_embedded._store.errors import (
    IndexTypeConflictError,
    StoreDamagedError,
    StoreFailedError,
    StoreUnusableError,
)
from dex_embedded._store.group_commit import GroupCommit, Statement
from dex_embedded._store.opening import (
    CHECKPOINT_WAITS_MS,
    LOG_LIMIT_PAGES,
    FileLock,
    check_content,
    check_header,
    connect_checkpointer,
    connect_reader,
    connect_writer,
    create_file,
)
from dex_embedded._store.protocol import (
    RunSummary,
    SearchPage,
    Store,
    StoredEvent,
    StreamMessage,
    StreamScope,
    Ticket,
)
from dex_embedded._store.reader import Reader
from dex_embedded._store.search import search
from dex_embedded._store.statements import statements_for

Synchronous = Literal["FULL", "NORMAL"]

CHECKPOINT_STATEMENTS: Final = 2_000
"""Statements after which the log is moved into the data file, beside the commits."""


def open_store(
    path: Path,
    *,
    encode_event: Callable[[HistoryEvent], bytes],
    on_failure: Callable[[BaseException], None],
    synchronous: Synchronous = "FULL",
    reach: Callable[[str], None] = lambda _: None,
) -> Store:
    """Open or create the data file and hold it exclusively. Needs a running event loop.

    Args:
        path: The data file; its folder exists.
        encode_event: Turns a history event into the bytes to keep.
        on_failure: Called once, on the loop, when a write fails.
        synchronous: FULL survives a power cut; NORMAL may lose the newest commits in one (never in
            a crash of the process) and saves one disk flush a commit.
        reach: For tests; see `GroupCommit`.

    Raises:
        StoreUnusableError: The file cannot be used; the subclass says why. Nothing was written.
    """
    if not path.parent.is_dir():
        raise StoreUnusableError(path, f"there is no folder {path.parent}")
    check_header(path)  # before the lock, so that a foreign folder stays as it is
    with ExitStack() as undo:
        lock = FileLock(path)
        undo.callback(lock.release)
        if check_header(path):
            check_content(path)
        else:
            create_file(path)
        writer = connect_writer(path, synchronous)
        undo.callback(writer.close)
        connection = connect_reader(path)
        undo.callback(connection.close)
        store = SqliteStore(path, lock, writer, connection, encode_event, on_failure, reach)
        undo.pop_all()
    return store


class SqliteStore:
    """See `protocol.Store`; made by `open_store`."""

    def __init__(
        self,
        path: Path,
        lock: FileLock,
        writer: sqlite3.Connection,
        connection: sqlite3.Connection,
        encode_event: Callable[[HistoryEvent], bytes],
        on_failure: Callable[[BaseException], None],
        reach: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._lock = lock
        self._writer = writer
        self._encode_event = encode_event
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dex-commit")
        self._checkpointer = ThreadPoolExecutor(1, thread_name_prefix="dex-checkpoint")
        self._commits = GroupCommit(writer, self._executor, on_failure, self._after_commit, reach)
        self._reader = Reader(connection, lambda error: StoreDamagedError(path, str(error)))
        self._streams = streams.StreamLog(self._reader)
        self._last_run_key = streams.last_run_key(self._reader)
        self._index_types = reading.read_index_types(self._reader)
        self._reader.failed = self._read_failed
        self._unsaved_requests: dict[tuple[int, str], RecordedRequest] = {}
        self._statements_since_checkpoint = 0
        self._checkpoint: Future[int] | None = None
        self._closed = False

    def _read_failed(self, error: sqlite3.Error) -> StoreFailedError:
        return self._commits.fail(error, "read")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._commits.commits} commits"
        return f"<SqliteStore {self._path} {state}>"

    # --- writing ---

    @property
    def commits(self) -> int:
        """COMMITs so far, for measurements."""
        return self._commits.commits

    def new_run_key(self) -> int:
        self._last_run_key += 1
        return self._last_run_key

    def stage(self, *transitions: Transition, hurried: bool = True) -> Ticket:
        statements: list[Statement] = []
        unsaved: dict[tuple[int, str], RecordedRequest] = {}
        for transition in transitions:
            key = transition.run.key
            statements.extend(statements_for(key, transition.changes, self._encode_event))
            for change in transition.changes:
                if isinstance(change, RecordRequest):
                    unsaved[key, change.request.request_id] = change.request
        ticket = self._commits.stage(statements, hurried=hurried)
        if unsaved:
            self._unsaved_requests.update(unsaved)
            ticket.add_callback(lambda: self._forget_unsaved(unsaved))
        return ticket

    def _forget_unsaved(self, saved: Iterable[tuple[int, str]]) -> None:
        for key in saved:
            self._unsaved_requests.pop(key, None)

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
        message, statements = self._streams.append(
            scope,
            flow_id,
            value=value,
            source=source,
            created_at=created_at,
            capacity=capacity,
        )
        ticket = self._commits.stage(statements, hurried=hurried)
        ticket.add_callback(lambda: self._streams.made_durable(scope, flow_id, message))
        return message.id, ticket

    def declare_indexes(self, types: Mapping[str, IndexType]) -> Ticket:
        for key, index_type in types.items():
            known = self._index_types.get(key, index_type)
            if known is not index_type:
                raise IndexTypeConflictError(key, known.name, index_type.name)
        new = {key: kind for key, kind in types.items() if key not in self._index_types}
        ticket = self._commits.stage(
            [
                ("INSERT INTO index_type (index_key, type) VALUES (?, ?)", (key, int(kind)))
                for key, kind in new.items()
            ]
        )
        self._index_types.update(new)
        return ticket

    # --- checkpoints ---

    def _after_commit(self, statements: int) -> None:
        self._statements_since_checkpoint += statements
        if self._statements_since_checkpoint < CHECKPOINT_STATEMENTS or self._closed:
            return
        if self._checkpoint is not None and not self._checkpoint.done():
            return
        self._statements_since_checkpoint = 0
        if _pages_left(self._checkpoint) > LOG_LIMIT_PAGES:
            # Writers were never quiet long enough for the log to start over: make them wait.
            self._commits.checkpoint_after_next_commit()
            self._checkpoint = None
        else:
            self._checkpoint = self._checkpointer.submit(_checkpoint, self._path)

    @property
    def log_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def cut_log(self) -> None:
        if not self._closed and (self._checkpoint is None or self._checkpoint.done()):
            self._checkpoint = self._checkpointer.submit(_checkpoint, self._path, "TRUNCATE")

    # --- reading ---

    def summary(self, flow_id: str, run_id: str = "") -> RunSummary | None:
        return reading.read_summary(self._reader, flow_id, run_id)

    def load(self, run_key: int) -> FlowRun:
        return reading.load_run(self._reader, run_key)

    def request(self, run_key: int, request_id: str) -> RecordedRequest | None:
        unsaved = self._unsaved_requests.get((run_key, request_id))
        return unsaved or reading.read_request(self._reader, run_key, request_id)

    def runs_to_recover(self) -> list[RunSummary]:
        return reading.read_busy(self._reader)

    def wakes(self, before: float, limit: int) -> list[tuple[float, RunSummary]]:
        return reading.read_wakes(self._reader, before, limit)

    def search(self, query: str, *, limit: int, after: str, include_continued: bool) -> SearchPage:
        return search(
            self._reader,
            self._index_types,
            query,
            limit=limit,
            after=after,
            include_continued=include_continued,
        )

    def index_types(self) -> Mapping[str, IndexType]:
        return dict(self._index_types)

    def history(self, run_key: int, start_event_id: int, limit: int) -> Sequence[StoredEvent]:
        return reading.read_history(self._reader, run_key, start_event_id, limit)

    def last_event_id(self, run_key: int) -> int:
        return reading.read_last_event_id(self._reader, run_key)

    def attribute_values(self, run_key: int, versions: Iterable[int]) -> dict[int, bytes]:
        return reading.read_values(self._reader, run_key, versions)

    def next_stream_message(
        self, scope: StreamScope, flow_id: str, after_id: int
    ) -> StreamMessage | None:
        return self._streams.next(scope, flow_id, after_id)

    def list_stream_messages(
        self, scope: StreamScope, flow_id: str, before_id: int | None, limit: int
    ) -> Iterator[StreamMessage]:
        return streams.read_page(self._reader, scope, flow_id, before_id, limit)

    def has_stream_message(self, scope: StreamScope, flow_id: str, message_id: int) -> bool:
        return streams.has_message(self._reader, scope, flow_id, message_id)

    # --- end ---

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._commits.drain()
        await asyncio.get_running_loop().run_in_executor(None, self._close_files)

    def _close_files(self) -> None:
        self._checkpointer.shutdown()
        self._executor.shutdown()
        self._reader.close()
        # The last connection moves the log into the data file and removes it.
        self._writer.close()
        self._lock.release()


def _pages_left(checkpoint: Future[int] | None) -> int:
    """Pages in the log after a finished checkpoint; 0 without one, or when it failed."""
    if checkpoint is None or checkpoint.exception() is not None:
        return 0
    return checkpoint.result()


def _checkpoint(path: Path, mode: str = "PASSIVE") -> int:
    """Move what can be moved of the log into the data file without keeping anybody waiting.

    Args:
        path: The data file.
        mode: TRUNCATE also cuts the log, when no reader is in the way; commits wait for that.

    Returns:
        The pages in the log.
    """
    with closing(connect_checkpointer(path)) as connection:
        connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAITS_MS}")
        _, pages, _ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    return pages
