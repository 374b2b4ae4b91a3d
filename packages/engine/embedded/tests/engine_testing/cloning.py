"""Makes a data file of many flows from one of few, by copying rows.

Taking 100,000 flows through their Steps would take hours. So a test takes a few hundred real ones
to the state it wants, stops the engine, and lets `clone_runs` repeat their rows under new keys,
flow ids and run ids; the tables of `dex_embedded._store.schema` say what belongs to a run. What
comes out is an ordinary data file, and `db check` says whether it is a good one.

A copy shares nothing with its original, with one exception: stream messages are not copied, since
all flows of a type share the capacity of a stream, and those of so many would have been trimmed.
"""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Final

from dex_embedded._store.schema import FORMAT_VERSION, NUMBER_BITS

_KNOWN_FORMAT: Final = 1
_NUMBERED: Final = ("attribute_value", "message", "step", "event")
_OF_A_RUN: Final = ("attribute", "request", "index_entry")
_OF_NO_RUN: Final = {"run", "index_type", "stream_scope", "stream_message"}
_NEW_IDS: Final = {"key", "flow_id", "run_id", "first_run_id"}


def clone_runs(data_file: Path, total: int) -> list[str]:
    """Copies the current runs of a data file, in turn by flow id, until it holds `total` runs.

    The engine must be stopped. Each flow id has to end in digits that leave room for its copies:
    copies of `parked-000003` are `parked-000123` and so on, of the same length, because the id is
    also inside the first event of a history.

    Returns:
        The flow ids of all runs, the originals first.
    """
    if FORMAT_VERSION != _KNOWN_FORMAT:
        raise NotImplementedError(f"copying rows is written for format {_KNOWN_FORMAT}")
    with closing(sqlite3.connect(data_file)) as db, db:
        _check_tables(db)
        # A copy that a crash leaves unfinished is of no use anyway.
        db.execute("PRAGMA synchronous = OFF")
        ids = _plan(db, total)
        columns = [row[1] for row in db.execute("PRAGMA table_info(run)")]
        kept = ", ".join(f"run.{name}" for name in columns if name not in _NEW_IDS)
        names = ", ".join(name for name in columns if name not in _NEW_IDS)
        db.execute(
            f"INSERT INTO run (key, flow_id, run_id, first_run_id, {names})"
            f" SELECT copy.key, copy.flow_id, copy.run_id, copy.run_id, {kept}"
            " FROM copy JOIN run ON run.key = copy.original ORDER BY copy.key"
        )
        for table in _OF_A_RUN:
            rest = _columns(db, table, "run")
            db.execute(
                f"INSERT INTO {table} (run, {', '.join(rest)})"
                f" SELECT copy.key, {', '.join(f't.{name}' for name in rest)}"
                f" FROM copy JOIN {table} AS t ON t.run = copy.original ORDER BY copy.key"
            )
        db.create_function("renamed", 3, _renamed, deterministic=True)
        for table in _NUMBERED:
            rest = _columns(db, table, "id")
            values = [
                "renamed(t.payload, copy.original_flow_id, copy.flow_id)"
                if name == "payload"
                else f"t.{name}"
                for name in rest
            ]
            db.execute(
                f"INSERT INTO {table} (id, {', '.join(rest)})"
                f" SELECT t.id + ((copy.key - copy.original) << {NUMBER_BITS}), {', '.join(values)}"
                f" FROM copy JOIN {table} AS t ON t.id >= copy.original << {NUMBER_BITS}"
                f" AND t.id < (copy.original + 1) << {NUMBER_BITS} ORDER BY copy.key, t.id"
            )
        db.execute("DROP TABLE copy")
    return ids


def _check_tables(db: sqlite3.Connection) -> None:
    found = {
        name
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        if not name.startswith("sqlite_")
    }
    known = {*_NUMBERED, *_OF_A_RUN, *_OF_NO_RUN}
    if found != known:
        raise NotImplementedError(f"tables that copying does not know: {found ^ known}")


def _plan(db: sqlite3.Connection, total: int) -> list[str]:
    """Fills the temporary table `copy`: which run is repeated under which key and ids."""
    db.execute(
        "CREATE TEMP TABLE copy (key INTEGER PRIMARY KEY, original INTEGER, original_flow_id TEXT,"
        " flow_id TEXT, run_id TEXT)"
    )
    originals = list(db.execute("SELECT key, flow_id FROM run WHERE current = 1 ORDER BY flow_id"))
    ids = [flow_id for _, flow_id in originals]
    first_key = db.execute("SELECT max(key) FROM run").fetchone()[0] + 1
    for number in range(len(originals), total):
        original, flow_id = originals[number % len(originals)]
        stem = flow_id.rstrip("0123456789")
        copy_id = f"{stem}{number:0{len(flow_id) - len(stem)}d}"
        if len(copy_id) != len(flow_id):
            raise ValueError(f"flow id {flow_id!r} has too few digits for {total} copies")
        ids.append(copy_id)
        key = first_key + number - len(originals)
        db.execute(
            "INSERT INTO copy VALUES (?, ?, ?, ?, ?)",
            (key, original, flow_id, copy_id, str(uuid.uuid4())),
        )
    return ids


def _columns(db: sqlite3.Connection, table: str, without: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != without]


def _renamed(payload: bytes, old: str, new: str) -> bytes:
    return payload.replace(old.encode(), new.encode())
