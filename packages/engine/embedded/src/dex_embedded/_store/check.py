"""Looking through a whole data file, without changing it, for anything that cannot be right."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from dex_embedded._kernel.invariants import broken_invariants
from dex_embedded._kernel.state import FlowRun
from dex_embedded._store.errors import StoreDamagedError, StoreError, StoreUnusableError
from dex_embedded._store.opening import FileLock, check_header, connect_observer
from dex_embedded._store.reader import Reader
from dex_embedded._store.reading import load_run, read_last_event_id
from dex_embedded._store.schema import FORMAT_VERSION, NUMBER_BITS

MAXIMUM_PROBLEMS: Final = 100
"""A file with more is beyond reading a list."""

_RUNS_AT_ONCE: Final = 500
_NUMBERED: Final = ("message", "step", "event", "attribute_value")
_OF_A_RUN: Final = ("attribute", "request", "index_entry")


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What a check found.

    Attributes:
        path: The data file.
        format_version: The version of its tables.
        size: Its bytes, without the log beside it.
        active_runs: Runs that are going on.
        closed_runs: Runs that have ended.
        problems: One sentence each, at most `MAXIMUM_PROBLEMS`; names flows, Steps, channels and
            locks, and never shows a value. Empty when all is well.
    """

    path: Path
    format_version: int
    size: int
    active_runs: int
    closed_runs: int
    problems: tuple[str, ...]


def check_file(path: Path) -> CheckReport:
    """Check every page, every row that belongs to something, and the state of every run.

    Raises:
        StoreInUseError: An engine has it.
        StoreUnusableError: It cannot be read at all, or its format is not the one of this version;
            the subclass says why.
    """
    if not check_header(path):
        raise StoreUnusableError(path, "there is no such file")
    with ExitStack() as stack:
        lock = FileLock(path, shared=True)
        stack.callback(lock.release)
        try:
            connection = stack.enter_context(closing(connect_observer(path)))
            version = connection.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            raise StoreDamagedError(path, str(error)) from error
        if version != FORMAT_VERSION:
            raise StoreUnusableError(
                path,
                f"it has format version {version} and this check knows {FORMAT_VERSION};"
                " start the engine once to bring it up to date",
            )
        reader = Reader(connection, lambda error: StoreDamagedError(path, str(error)))
        problems = list(islice(_problems(reader), MAXIMUM_PROBLEMS))
        active, closed = _counts(reader)
        return CheckReport(
            path=path,
            format_version=version,
            size=path.stat().st_size,
            active_runs=active,
            closed_runs=closed,
            problems=tuple(problems),
        )


def _counts(reader: Reader) -> tuple[int, int]:
    try:
        row = reader.row("SELECT count(*) FILTER (WHERE closed_at IS NULL), count(*) FROM run")
    except StoreError:
        return 0, 0  # the problems say so already
    active, all_runs = row or (0, 0)
    return active, all_runs - active


def _problems(reader: Reader) -> Iterator[str]:
    try:
        damage = _damage(reader)
        if damage:
            # What is read from damaged pages would only repeat it in other words.
            yield from damage
            return
        yield from _strays(reader)
        yield from _runs(reader)
    except StoreError as error:
        yield f"the file is damaged: {error}"


def _damage(reader: Reader) -> list[str]:
    found = [row[0] for row in reader.rows(f"PRAGMA integrity_check({MAXIMUM_PROBLEMS})")]
    return [] if found == ["ok"] else [f"the file is damaged: {line}" for line in found]


def _strays(reader: Reader) -> Iterator[str]:
    """Rows of runs that do not exist."""
    owners = {table: f"{table}.id >> {NUMBER_BITS}" for table in _NUMBERED}
    owners |= {table: f"{table}.run" for table in _OF_A_RUN}
    for table, owner in owners.items():
        row = reader.row(
            f"SELECT count(*) FROM {table} WHERE NOT EXISTS"
            f" (SELECT 1 FROM run WHERE run.key = {owner})"
        )
        if row is not None and row[0]:
            yield f"table {table} has {row[0]} rows of runs that do not exist"
    row = reader.row(
        "SELECT count(*) FROM stream_message WHERE NOT EXISTS"
        " (SELECT 1 FROM stream_scope WHERE stream_scope.scope = stream_message.scope)"
    )
    if row is not None and row[0]:
        yield f"table stream_message has {row[0]} rows of streams that do not exist"


def _runs(reader: Reader) -> Iterator[str]:
    last = 0
    while True:
        rows = reader.rows(
            "SELECT key, flow_id, run_id, busy, wake_at FROM run"
            " WHERE key > ? ORDER BY key LIMIT ?",
            (last, _RUNS_AT_ONCE),
        )
        if not rows:
            return
        for key, flow_id, run_id, busy, wake_at in rows:
            where = f"flow {flow_id!r}, run {run_id}"
            try:
                run = load_run(reader, key)
                wrong = [
                    *broken_invariants(run),
                    *_wrong_columns(run, busy, wake_at),
                    *_wrong_history(reader, run),
                ]
            except Exception as error:  # a row nobody wrote can fail to be read in any way
                # By name alone: the text of the error may repeat what is in the row.
                yield f"{where}: its state cannot be read ({type(error).__name__})"
            else:
                yield from (f"{where}: {sentence}" for sentence in wrong)
        last = rows[-1][0]


def _wrong_columns(run: FlowRun, busy: int, wake_at: float | None) -> Iterator[str]:
    """The columns by which an engine that starts finds what it has to do."""
    if run.is_active and bool(busy) != run.is_busy:
        yield "its mark for work in progress is wrong"
    if wake_at != (run.wake_at if run.is_active else None):
        yield "the time it is next due is wrong"


def _wrong_history(reader: Reader, run: FlowRun) -> Iterator[str]:
    last = read_last_event_id(reader, run.key)
    if last != run.event_clock:
        yield f"its history ends with event {last} and should end with {run.event_clock}"
