"""The tables, and how a file gets from one format version to the next.

A migration is never edited once released; a change of format is a new entry at the end of
`MIGRATIONS`, and the version of a file is the number of entries applied to it.

Composite keys: a row that belongs to a run and has a number inside it (attribute version, message
sequence, step ordinal, event id) has the rowid `run << 32 | number`, so the rows of one run lie
together and need no second index.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x44455845
"""`PRAGMA application_id` of every data file of this engine (the letters "DEXE")."""

NUMBER_BITS: Final = 32

_VERSION_1: Final = (
    # `header` changes in nearly every transition and is small; `bulk` (config, outputs, delayed
    # queue) changes rarely. `busy`: some method is in progress or pending. `current`: the run that
    # calls without a run id mean.
    """
    CREATE TABLE run (
        key INTEGER PRIMARY KEY AUTOINCREMENT,
        flow_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        first_run_id TEXT NOT NULL,
        run_attempt INTEGER NOT NULL,
        flow_type TEXT NOT NULL,
        request_id TEXT NOT NULL,
        started_at REAL NOT NULL,
        status INTEGER NOT NULL,
        closed_at REAL,
        current INTEGER NOT NULL,
        busy INTEGER NOT NULL,
        wake_at REAL,
        header TEXT NOT NULL,
        bulk TEXT NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX run_by_id ON run (flow_id, run_id)",
    "CREATE UNIQUE INDEX run_current ON run (flow_id) WHERE current = 1",
    "CREATE INDEX run_busy ON run (key) WHERE busy = 1",
    "CREATE INDEX run_wake ON run (wake_at) WHERE wake_at IS NOT NULL",
    "CREATE INDEX run_by_start ON run (started_at, key)",
    # Which version of a key is, or was, in force. `map` is empty for an ordinary attribute. `until`
    # is NULL for the version in force, else the version that replaced it; replaced rows stay only
    # while a snapshot in use may show them.
    """
    CREATE TABLE attribute (
        run INTEGER NOT NULL,
        map TEXT NOT NULL,
        key TEXT NOT NULL,
        version INTEGER NOT NULL,
        until INTEGER,
        hard_delete INTEGER NOT NULL,
        PRIMARY KEY (run, map, key, version)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX attribute_replaced ON attribute (run) WHERE until IS NOT NULL",
    # id = run, version. A value is written once and shared by state, snapshots and history.
    "CREATE TABLE attribute_value (id INTEGER PRIMARY KEY, value BLOB NOT NULL)",
    # id = run, sequence. `pending` is 0 while only a snapshot in use shows the message.
    """
    CREATE TABLE message (
        id INTEGER PRIMARY KEY,
        channel TEXT NOT NULL,
        message_id TEXT NOT NULL,
        pending INTEGER NOT NULL,
        value BLOB NOT NULL
    )
    """,
    # id = run, ordinal. Active executions only. `fixed`: options and recovery error; `given`:
    # condition results and locals; `state`: all that changes.
    """
    CREATE TABLE step (
        id INTEGER PRIMARY KEY,
        step_type TEXT NOT NULL,
        number INTEGER NOT NULL,
        from_id TEXT NOT NULL,
        input BLOB NOT NULL,
        fixed TEXT NOT NULL,
        given TEXT NOT NULL,
        state TEXT NOT NULL
    )
    """,
    # id = run, event id.
    "CREATE TABLE event (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)",
    """
    CREATE TABLE request (
        run INTEGER NOT NULL,
        request_id TEXT NOT NULL,
        output BLOB,
        PRIMARY KEY (run, request_id)
    ) WITHOUT ROWID
    """,
    "CREATE TABLE index_type (index_key TEXT PRIMARY KEY, type INTEGER NOT NULL) WITHOUT ROWID",
    # `value` is text, a number, 0 or 1 for a bool, a JSON list of texts for a keyword array.
    """
    CREATE TABLE index_entry (
        run INTEGER NOT NULL,
        index_key TEXT NOT NULL,
        type INTEGER NOT NULL,
        value NOT NULL,
        PRIMARY KEY (run, index_key)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX index_entry_by_value ON index_entry (index_key, value)",
    """
    CREATE TABLE stream_scope (
        scope INTEGER PRIMARY KEY,
        flow_type TEXT NOT NULL,
        stream_name TEXT NOT NULL,
        UNIQUE (flow_type, stream_name)
    )
    """,
    # AUTOINCREMENT: an id is never used again, also when the newest message has been trimmed.
    """
    CREATE TABLE stream_message (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        scope INTEGER NOT NULL,
        flow_id TEXT NOT NULL,
        charge INTEGER NOT NULL,
        created_at REAL NOT NULL,
        source TEXT NOT NULL,
        value BLOB NOT NULL
    )
    """,
    "CREATE INDEX stream_message_by_flow ON stream_message (scope, flow_id, id)",
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_VERSION_1,)

FORMAT_VERSION: Final = len(MIGRATIONS)
"""The version this engine writes and the newest it reads (`PRAGMA user_version`)."""


def row_id(run_key: int, number: int) -> int:
    """The rowid of something numbered inside a run."""
    return run_key << NUMBER_BITS | number


def map_of(key: str) -> str:
    """The map an attribute key belongs to; empty for an ordinary attribute."""
    name, slash, _ = key.partition("/")
    return name if slash else ""


def row_range(run_key: int) -> tuple[int, int]:
    """First and last rowid of a run, for BETWEEN."""
    return row_id(run_key, 0), row_id(run_key + 1, 0) - 1


def number_of(rowid: int) -> int:
    """The number inside the run."""
    return rowid & ((1 << NUMBER_BITS) - 1)
