"""Stream messages: appended, trimmed by capacity, read in order.

The charges of a scope's messages are kept in memory from its first write on (16 bytes a message),
so trimming names the rows to delete without reading.
"""

from __future__ import annotations

from array import array
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


class StreamLog:
    """Builds the statements of stream writes.

    Args:
        reader: For committed rows.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._scopes: dict[StreamScope, _Scope] = {}
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
    ) -> tuple[int, list[Statement]]:
        """The id of the new message, and the statements that add it and trim its scope.

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
        return message_id, statements

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
