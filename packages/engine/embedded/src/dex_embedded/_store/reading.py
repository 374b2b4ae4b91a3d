"""Reading runs, history and the rest back from committed rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from dex_embedded._kernel.inputs import RecordedRequest
from dex_embedded._kernel.state import AttributeTable, FlowRun, Phase, Snapshot, StepExecution
from dex_embedded._kernel.values import (
    AttributeVersion,
    ChannelMessage,
    FlowErrorType,
    FlowStatus,
    IndexType,
    Method,
    Selection,
)
from dex_embedded._store.protocol import IndexedValue, RunSummary, StoredEvent
from dex_embedded._store.reader import Reader
from dex_embedded._store.records import (
    Record,
    fill_bulk,
    from_text,
    load_fixed,
    load_given,
    load_invocation,
    load_snapshot_record,
    load_wait,
    load_wait_for_routing,
)
from dex_embedded._store.schema import map_of, number_of, row_id, row_range

SUMMARY_COLUMNS = (
    "key, flow_id, run_id, first_run_id, run_attempt, flow_type, request_id, status, started_at,"
    " closed_at"
)


def summary_from(row: Sequence[object]) -> RunSummary:
    """A summary from the first columns of a row selected by `SUMMARY_COLUMNS`."""
    key, flow_id, run_id, first_run_id, attempt, flow_type, request_id, status, started, closed = (
        row[:10]
    )
    return RunSummary(
        key=_int(key),
        flow_id=str(flow_id),
        run_id=str(run_id),
        first_run_id=str(first_run_id),
        run_attempt=_int(attempt),
        flow_type=str(flow_type),
        request_id=str(request_id),
        status=FlowStatus(_int(status)),
        started_at=_float(started),
        closed_at=None if closed is None else _float(closed),
    )


def read_summary(reader: Reader, flow_id: str, run_id: str) -> RunSummary | None:
    where, parameters = (
        ("flow_id = ? AND run_id = ?", (flow_id, run_id))
        if run_id
        else ("flow_id = ? AND current = 1", (flow_id,))
    )
    row = reader.row(f"SELECT {SUMMARY_COLUMNS} FROM run WHERE {where}", parameters)
    return None if row is None else summary_from(row)


def read_busy(reader: Reader) -> list[RunSummary]:
    rows = reader.rows(f"SELECT {SUMMARY_COLUMNS} FROM run WHERE busy = 1 ORDER BY key")
    return [summary_from(row) for row in rows]


def read_wakes(reader: Reader, before: float, limit: int) -> list[tuple[float, RunSummary]]:
    rows = reader.rows(
        f"SELECT {SUMMARY_COLUMNS}, wake_at FROM run"
        " WHERE wake_at IS NOT NULL AND wake_at < ? ORDER BY wake_at, key LIMIT ?",
        (before, limit),
    )
    return [(row[10], summary_from(row)) for row in rows]


def load_run(reader: Reader, run_key: int) -> FlowRun:
    """The whole state of a run."""
    row = reader.row(f"SELECT {SUMMARY_COLUMNS}, header, bulk FROM run WHERE key = ?", (run_key,))
    if row is None:
        raise KeyError(f"no run with key {run_key}")
    run = _run_from(summary_from(row), from_text(row[10]), from_text(row[11]))
    stored = StoredAttributes(reader, run_key)
    run.attributes = AttributeTable(stored.ordinary(), stored)
    messages = _read_messages(reader, run)
    for rowid, step_type, number, from_id, step_input, fixed, given, state in reader.rows(
        "SELECT id, step_type, number, from_id, input, fixed, given, state FROM step"
        " WHERE id BETWEEN ? AND ? ORDER BY id",
        row_range(run_key),
    ):
        options, recovery_error = load_fixed(from_text(fixed))
        results, step_locals, wait_for_error = load_given(from_text(given))
        record = from_text(state)
        step = StepExecution(
            ordinal=number_of(rowid),
            step_type=step_type,
            number=number,
            from_id=from_id,
            input=step_input,
            options=options,
            recovery_error=recovery_error,
            method=Method(record["method"]),
            phase=Phase(record["phase"]),
            invocation=load_invocation(record),
            wait=load_wait(record),
            results=results,
            wait_for_error=wait_for_error,
            locals=step_locals,
            consumed=tuple((name, count) for name, count in record.get("consumed", ())),
            held_locks=tuple(record.get("locks", ())),
            wait_for_routing=load_wait_for_routing(record),
        )
        if step.invocation is not None:
            step.invocation.snapshot = _rebuild_snapshot(step, record, stored, messages)
        run.steps[step.id] = step
        for key in step.held_locks:
            run.locks[key] = step.id
    return run


def _run_from(summary: RunSummary, header: Record, bulk: Record) -> FlowRun:
    run = FlowRun(
        key=summary.key,
        flow_id=summary.flow_id,
        run_id=summary.run_id,
        first_run_id=summary.first_run_id,
        run_attempt=summary.run_attempt,
        flow_type=summary.flow_type,
        request_id=summary.request_id,
        started_at=summary.started_at,
        status=summary.status,
        closed_at=summary.closed_at,
        error_type=FlowErrorType(header.get("error_type", 0)),
        error_message=header.get("error_message", ""),
        completing=header.get("completing", False),
        attribute_clock=header.get("attribute_clock", 0),
        message_clock=header.get("message_clock", 0),
        step_clock=header.get("step_clock", 0),
        event_clock=header.get("event_clock", 0),
        lock_clock=header.get("lock_clock", 0),
        step_counts=header.get("step_counts", {}),
        start_due_at=header.get("start_due_at"),
        sticky_worker=header.get("sticky_worker", ""),
        has_old_versions=header.get("old_versions", False),
    )
    fill_bulk(run, bulk)
    return run


class StoredAttributes:
    """The attributes of one run as the store has them; the source of its `AttributeTable`."""

    def __init__(self, reader: Reader, run_key: int) -> None:
        self._reader = reader
        self._run_key = run_key

    def ordinary(self) -> list[AttributeVersion]:
        return self.entries("")

    def entry(self, key: str) -> AttributeVersion | None:
        found = self._read("AND a.map = ? AND a.key = ? AND a.until IS NULL", map_of(key), key)
        return found[0] if found else None

    def entries(self, map_name: str) -> list[AttributeVersion]:
        return self._read("AND a.map = ? AND a.until IS NULL", map_name)

    def everything(self) -> list[AttributeVersion]:
        return self._read("AND a.map <> '' AND a.until IS NULL")

    def as_of(self, version: int, selection: Selection) -> tuple[AttributeVersion, ...]:
        """What a snapshot of that moment shows: ordinary attributes and the selection, by key."""
        then = "AND a.version <= ? AND (a.until IS NULL OR a.until > ?)"
        moment = (version, version)
        whole = {name[:-1] for name in selection.attribute_maps if name.endswith("/")}
        shown = self._read(f"AND a.map = '' {then}", *moment)
        for name in whole:
            shown.extend(self._read(f"AND a.map = ? {then}", name, *moment))
        for key in selection.attribute_maps:
            if not key.endswith("/") and map_of(key) not in whole:
                shown.extend(
                    self._read(f"AND a.map = ? AND a.key = ? {then}", map_of(key), key, *moment)
                )
        shown.sort(key=lambda stored: stored.key)
        return tuple(shown)

    def _read(self, condition: str, *parameters: object) -> list[AttributeVersion]:
        rows = self._reader.rows(
            "SELECT a.key, a.version, a.hard_delete, v.value FROM attribute AS a"
            " JOIN attribute_value AS v ON v.id = ? + a.version"
            f" WHERE a.run = ? {condition}",
            (row_id(self._run_key, 0), self._run_key, *parameters),
        )
        return [
            AttributeVersion(key=key, version=version, value=value, hard_delete=bool(hard_delete))
            for key, version, hard_delete, value in rows
        ]


def _read_messages(reader: Reader, run: FlowRun) -> dict[int, ChannelMessage]:
    """Fill the run's channels; returns all messages by sequence, pending or not."""
    messages: dict[int, ChannelMessage] = {}
    for rowid, channel, message_id, pending, value in reader.rows(
        "SELECT id, channel, message_id, pending, value FROM message"
        " WHERE id BETWEEN ? AND ? ORDER BY id",
        row_range(run.key),
    ):
        message = ChannelMessage(
            channel=channel, message_id=message_id, sequence=number_of(rowid), value=value
        )
        messages[message.sequence] = message
        if pending:
            run.channels.setdefault(channel, deque()).append(message)
        else:
            run.retained[message.sequence] = message
    return messages


def _rebuild_snapshot(
    step: StepExecution,
    record: Record,
    attributes: StoredAttributes,
    messages: dict[int, ChannelMessage],
) -> Snapshot | None:
    """The snapshot as it was: the versions in force at its moment, the messages it showed."""
    stored = load_snapshot_record(record)
    if stored is None:
        return None
    selection = step.options.of(step.method).selection
    return Snapshot(
        as_of=stored.as_of,
        attributes=attributes.as_of(stored.as_of, selection),
        channel_sizes=stored.channel_sizes,
        messages=tuple(
            (name, tuple(messages[sequence] for sequence in sequences))
            for name, sequences in stored.sequences
        ),
        selection=selection,
    )


# --- history and the rest --------------------------------------------------------------------


def read_history(
    reader: Reader, run_key: int, start_event_id: int, limit: int
) -> list[StoredEvent]:
    first, last = row_range(run_key)
    rows = reader.rows(
        "SELECT id, payload FROM event WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
        # A number far beyond the end must not leave the range SQLite has for numbers.
        (first + min(max(start_event_id, 0), last - first + 1), last, limit),
    )
    return [StoredEvent(event_id=number_of(rowid), payload=payload) for rowid, payload in rows]


def read_last_event_id(reader: Reader, run_key: int) -> int:
    row = reader.row("SELECT max(id) FROM event WHERE id BETWEEN ? AND ?", row_range(run_key))
    newest: int | None = row[0] if row is not None else None
    return 0 if newest is None else number_of(newest)


def read_values(reader: Reader, run_key: int, versions: Iterable[int]) -> dict[int, bytes]:
    values: dict[int, bytes] = {}
    for version in set(versions):
        row = reader.row(
            "SELECT value FROM attribute_value WHERE id = ?", (row_id(run_key, version),)
        )
        if row is not None:
            values[version] = row[0]
    return values


def read_request(reader: Reader, run_key: int, request_id: str) -> RecordedRequest | None:
    row = reader.row(
        "SELECT output FROM request WHERE run = ? AND request_id = ?", (run_key, request_id)
    )
    return None if row is None else RecordedRequest(request_id=request_id, output=row[0])


def read_index_types(reader: Reader) -> dict[str, IndexType]:
    rows = reader.rows("SELECT index_key, type FROM index_type")
    return {key: IndexType(number) for key, number in rows}


def read_indexed_values(reader: Reader, run_key: int) -> tuple[IndexedValue, ...]:
    rows = reader.rows(
        "SELECT index_key, type, value FROM index_entry WHERE run = ? ORDER BY index_key",
        (run_key,),
    )
    return tuple(_indexed_value(*row) for row in rows)


def _indexed_value(index_key: str, number: int, stored: str | int | float) -> IndexedValue:
    index_type = IndexType(number)
    value: str | int | float | bool | tuple[str, ...] = stored
    if index_type is IndexType.BOOL:
        value = bool(stored)
    elif index_type is IndexType.KEYWORD_ARRAY:
        value = tuple(from_text(str(stored)))
    return IndexedValue(index_key=index_key, type=index_type, value=value)


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
