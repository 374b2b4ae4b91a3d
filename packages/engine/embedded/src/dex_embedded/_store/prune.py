"""Removing closed runs and everything that belongs to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dex_embedded._store.errors import StoreUnusableError
from dex_embedded._store.opening import (
    FileLock,
    check_content,
    check_header,
    connect_observer,
    connect_writer,
)
from dex_embedded._store.schema import row_range

_RUNS_AT_ONCE: Final = 200
"""Runs removed in one transaction: all of a run goes, or nothing of it."""

_OLD: Final = "closed_at IS NOT NULL AND closed_at < :before"
_CANDIDATES: Final = f"""
    SELECT key, flow_id, current FROM run WHERE {_OLD} AND NOT (
        current = 1 AND EXISTS (
            SELECT 1 FROM run AS other
            WHERE other.flow_id = run.flow_id AND other.key <> run.key
            AND NOT (other.closed_at IS NOT NULL AND other.closed_at < :before)
        )
    ) ORDER BY key
"""
# The latest run of a flow goes only together with all others, so that a flow is never left without
# one. It takes a clock that was set back for this to matter.
_OWNED: Final = (
    ("event", "id BETWEEN :first AND :last"),
    ("message", "id BETWEEN :first AND :last"),
    ("step", "id BETWEEN :first AND :last"),
    ("attribute", "run = :key"),
    ("attribute_value", "id BETWEEN :first AND :last"),
    ("request", "run = :key"),
    ("index_entry", "run = :key"),
    ("run", "key = :key"),
)


@dataclass(frozen=True, kw_only=True)
class PruneReport:
    """What was removed, or would be.

    Attributes:
        runs: Closed runs.
        events: Events of their histories.
        stream_messages: Messages in streams of flows that have no run any more.
        size_before: Bytes of the data file.
        size_after: The same afterwards. Freed space stays in the file, and is used again, unless
            it was compacted.
    """

    runs: int
    events: int
    stream_messages: int
    size_before: int
    size_after: int


def prune_file(
    path: Path, *, closed_before: float, dry_run: bool = False, compact: bool = False
) -> PruneReport:
    """Remove the runs that closed before a moment, of a data file no engine has.

    A removed run is as if it had never been: its flow id can be used again, whatever the reuse
    policy of the next start says.

    Args:
        path: The data file.
        closed_before: Unix seconds.
        dry_run: Only count; change nothing.
        compact: Rewrite the file afterwards, without the free space. Needs as much space again.

    Raises:
        StoreInUseError: An engine has it.
        StoreUnusableError: It cannot be read or written; the subclass says why.
    """
    if not check_header(path):
        raise StoreUnusableError(path, "there is no such file")
    with ExitStack() as stack:
        lock = FileLock(path, shared=dry_run)
        stack.callback(lock.release)
        check_content(path)
        size_before = path.stat().st_size
        try:
            connection = connect_observer(path) if dry_run else connect_writer(path, "FULL")
            with closing(connection):
                removed = _remove(connection, closed_before, dry_run=dry_run)
                if not dry_run:
                    if compact:
                        connection.execute("VACUUM")
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise StoreUnusableError(path, str(error)) from error
        return PruneReport(
            runs=removed["run"],
            events=removed["event"],
            stream_messages=removed["stream_message"],
            size_before=size_before,
            size_after=path.stat().st_size,
        )


def _remove(
    connection: sqlite3.Connection, closed_before: float, *, dry_run: bool
) -> dict[str, int]:
    counts = dict.fromkeys([*(table for table, _ in _OWNED), "stream_message"], 0)
    runs = connection.execute(_CANDIDATES, {"before": closed_before}).fetchall()
    scopes = [row[0] for row in connection.execute("SELECT scope FROM stream_scope")]
    for start in range(0, len(runs), _RUNS_AT_ONCE):
        if not dry_run:
            connection.execute("BEGIN IMMEDIATE")
        for key, flow_id, current in runs[start : start + _RUNS_AT_ONCE]:
            first, last = row_range(key)
            parameters = {"key": key, "first": first, "last": last}
            for table, where in _OWNED:
                counts[table] += _take(connection, table, where, parameters, dry_run=dry_run)
            if current:
                for scope in scopes:
                    counts["stream_message"] += _take(
                        connection,
                        "stream_message",
                        "scope = :scope AND flow_id = :flow_id",
                        {"scope": scope, "flow_id": flow_id},
                        dry_run=dry_run,
                    )
        if not dry_run:
            connection.execute("COMMIT")
    return counts


def _take(
    connection: sqlite3.Connection,
    table: str,
    where: str,
    parameters: Mapping[str, object],
    *,
    dry_run: bool,
) -> int:
    if dry_run:
        counted: Sequence[int] = connection.execute(
            f"SELECT count(*) FROM {table} WHERE {where}", parameters
        ).fetchone()
        return counted[0]
    return connection.execute(f"DELETE FROM {table} WHERE {where}", parameters).rowcount
