"""Stream messages: appended, trimmed by capacity, read in order.

The charges of a scope's messages are kept in memory from its first write on (16 bytes a message),
so trimming names the rows to delete without reading. The newest messages are kept as well, since a
reader that follows a stream asks for each soon after it was written.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dex_embedded._store.errors import StreamCapacityError
from dex_embedded._store.group_commit import Statement
from dex_embedded._store.protocol import StreamMessage, StreamScope
from dex_embedded._store.reader import Reader

MESSAGE_OVERHEAD = 512
"""Bytes every message costs besides its value, flow id and source."""

TRIM_FROM = 0.9
TRIM_TO = 0.8
"""A scope filled to the first share of its capacity is trimmed to the second."""

KEPT_BYTES = 8 * 1024 * 1024
"""Charges of the messages kept in memory, of all streams together."""
KEPT_MESSAGES = 256
"""Messages of one stream kept in memory."""


def charge_of(value: bytes, flow_id: str, source: str) -> int:
    """What a message costs of its scope's capacity, in bytes."""
    return len(value) + len(flow_id.encode()) + len(source.encode()) + MESSAGE_OVERHEAD


@dataclass(slots=True)
class _Scope:
    """The retained messages of one scope, oldest first, from index `head` on."""

    key: int
    ids: array[int] = field(default_factory=lambda: array("q"))
    charges: array[int] = field(default_factory=lambda: array("q"))
    head: int = 0
    total: int = 0

    @property
    def oldest(self) -> int:
        """The id of the oldest message that has not been trimmed."""
        return self.ids[self.head]

    def add(self, message_id: int, charge: int) -> None:
        self.ids.append(message_id)
        self.charges.append(charge)
        self.total += charge

    def trim(self, target: float) -> list[int]:
        """Forget the oldest messages until the total is at most `target`; the newest stays."""
        gone: list[int] = []
        while self.total > target and self.head < len(self.ids) - 1:
            gone.append(self.ids[self.head])
            self.total -= self.charges[self.head]
            self.head += 1
        if self.head > len(self.ids) // 2:
            del self.ids[: self.head]
            del self.charges[: self.head]
            self.head = 0
        return gone


class _Tails:
    """The newest messages of the streams written to last, each stream's without a gap."""

    def __init__(self) -> None:
        self._tails: OrderedDict[tuple[StreamScope, str], deque[StreamMessage]] = OrderedDict()
        self._charge = 0

    def add(self, scope: StreamScope, flow_id: str, message: StreamMessage) -> None:
        key = (scope, flow_id)
        tail = self._tails.setdefault(key, deque())
        self._tails.move_to_end(key)
        tail.append(message)
        self._charge += charge_of(message.value, flow_id, message.source)
        if len(tail) > KEPT_MESSAGES:
            self._forget_first(flow_id, tail)
        while self._charge > KEPT_BYTES:
            (_, flow_id), oldest = next(iter(self._tails.items()))
            self._forget_first(flow_id, oldest)
            if not oldest:
                self._tails.popitem(last=False)

    def _forget_first(self, flow_id: str, tail: deque[StreamMessage]) -> None:
        message = tail.popleft()
        self._charge -= charge_of(message.value, flow_id, message.source)

    def after(
        self, scope: StreamScope, flow_id: str, message_id: int
    ) -> tuple[bool, StreamMessage | None]:
        """Whether what follows a message is known here, and if so what, or that nothing does."""
        tail = self._tails.get((scope, flow_id))
        if not tail or message_id < tail[0].id:
            return False, None
        if message_id >= tail[-1].id:
            return True, None
        following = tail[-1]
        # From the end: whoever follows a stream is hardly behind.
        for message in reversed(tail):
            if message.id <= message_id:
                break
            following = message
        return True, following


class StreamLog:
    """Builds the statements of stream writes, and finds the next message for a reader.

    Args:
        reader: For committed rows.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._scopes: dict[StreamScope, _Scope] = {}
        self._tails = _Tails()
        self._last_id = _last_number(reader, "stream_message")
        row = reader.row("SELECT max(scope) FROM stream_scope")
        self._last_scope: int = (row[0] if row is not None else None) or 0

    def append(
        self,
        scope: StreamScope,
        flow_id: str,
        *,
        value: bytes,
        source: str,
        created_at: float,
        capacity: int,
    ) -> tuple[StreamMessage, list[Statement]]:
        """The new message, and the statements that add it and trim its scope.

        Raises:
            StreamCapacityError: The message alone is larger than the capacity.
        """
        charge = charge_of(value, flow_id, source)
        if charge > capacity:
            raise StreamCapacityError(
                f"a message of {charge} bytes does not fit stream {scope.stream_name!r}"
                f" with a capacity of {capacity} bytes"
            )
        statements: list[Statement] = []
        state = self._scopes.get(scope)
        if state is None:
            state = self._open(scope, statements)
        self._last_id += 1
        message_id = self._last_id
        state.add(message_id, charge)
        statements.append(
            (
                "INSERT INTO stream_message (id, scope, flow_id, charge, created_at, source, value)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (message_id, state.key, flow_id, charge, created_at, source, value),
            )
        )
        if state.total >= TRIM_FROM * capacity:
            statements.extend(
                ("DELETE FROM stream_message WHERE id = ?", (gone,))
                for gone in state.trim(TRIM_TO * capacity)
            )
        message = StreamMessage(id=message_id, value=value, source=source, created_at=created_at)
        return message, statements

    def made_durable(self, scope: StreamScope, flow_id: str, message: StreamMessage) -> None:
        """The message is on disk, and so readers may see it. Given in the order of writing."""
        self._tails.add(scope, flow_id, message)

    def next(self, scope: StreamScope, flow_id: str, after_id: int) -> StreamMessage | None:
        """The oldest retained message of the flow id with an id above `after_id`."""
        known, message = self._tails.after(scope, flow_id, after_id)
        # What has been trimmed is passed over; that asks for the table.
        if known and (message is None or message.id >= self._scopes[scope].oldest):
            return message
        return read_next(self._reader, scope, flow_id, after_id)

    def _open(self, scope: StreamScope, statements: list[Statement]) -> _Scope:
        key = read_scope(self._reader, scope)
        if key is None:
            self._last_scope += 1
            state = _Scope(self._last_scope)
            statements.append(
                (
                    "INSERT INTO stream_scope (scope, flow_type, stream_name) VALUES (?, ?, ?)",
                    (state.key, scope.flow_type, scope.stream_name),
                )
            )
        else:
            state = _Scope(key)
            for message_id, charge in self._reader.rows(
                "SELECT id, charge FROM stream_message WHERE scope = ? ORDER BY id", (key,)
            ):
                state.add(message_id, charge)
        self._scopes[scope] = state
        return state


def _last_number(reader: Reader, table: str) -> int:
    """The highest key an AUTOINCREMENT table ever gave out."""
    row = reader.row("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,))
    return 0 if row is None else row[0]


def last_run_key(reader: Reader) -> int:
    return _last_number(reader, "run")


def read_scope(reader: Reader, scope: StreamScope) -> int | None:
    row = reader.row(
        "SELECT scope FROM stream_scope WHERE flow_type = ? AND stream_name = ?",
        (scope.flow_type, scope.stream_name),
    )
    return None if row is None else row[0]


def read_next(
    reader: Reader, scope: StreamScope, flow_id: str, after_id: int
) -> StreamMessage | None:
    key = read_scope(reader, scope)
    if key is None:
        return None
    row = reader.row(
        "SELECT id, value, source, created_at FROM stream_message"
        " WHERE scope = ? AND flow_id = ? AND id > ? ORDER BY id LIMIT 1",
        (key, flow_id, after_id),
    )
    return None if row is None else _message_from(row)


def read_page(
    reader: Reader,
    scope: StreamScope,
    flow_id: str,
    before_id: int | None,
    limit: int,
) -> Iterator[StreamMessage]:
    key = read_scope(reader, scope)
    if key is None:
        return iter(())
    anchor, parameters = ("", ()) if before_id is None else (" AND id < ?", (before_id,))
    rows = reader.rows(
        "SELECT id, value, source, created_at FROM stream_message"
        f" WHERE scope = ? AND flow_id = ?{anchor} ORDER BY id DESC LIMIT ?",
        (key, flow_id, *parameters, limit),
    )
    return (_message_from(row) for row in rows)


def has_message(reader: Reader, scope: StreamScope, flow_id: str, message_id: int) -> bool:
    key = read_scope(reader, scope)
    if key is None:
        return False
    row = reader.row(
        "SELECT 1 FROM stream_message WHERE scope = ? AND flow_id = ? AND id = ?",
        (key, flow_id, message_id),
    )
    return row is not None


def _message_from(row: tuple[int, bytes, str, float]) -> StreamMessage:
    message_id, value, source, created_at = row
    return StreamMessage(id=message_id, value=value, source=source, created_at=created_at)
