"""From the changes of a transition to SQL statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, assert_never

from dex_embedded._kernel.events import HistoryEvent
from dex_embedded._kernel.state import FlowRun, StepExecution
from dex_embedded._kernel.transition import (
    AddMessage,
    AppendEvent,
    Change,
    DeleteAttribute,
    DeleteStep,
    ForgetOldVersions,
    InsertRun,
    PutAttribute,
    PutIndexEntry,
    PutStep,
    RecordRequest,
    RemoveMessage,
    UpdateRun,
)
from dex_embedded._kernel.values import AttributeVersion, IndexWrite
from dex_embedded._store.group_commit import Statement
from dex_embedded._store.records import (
    dump_bulk,
    dump_given,
    dump_header,
    dump_state,
    fixed_text,
    to_text,
)
from dex_embedded._store.schema import map_of, row_id

_ONE_VERSION: Final = "WHERE run = ? AND map = ? AND key = ? AND version = ?"


def statements_for(
    run_key: int, changes: Iterable[Change], encode_event: Callable[[HistoryEvent], bytes]
) -> list[Statement]:
    """The statements that make the changes of one run durable, in order."""
    statements: list[Statement] = []
    for change in changes:
        match change:
            # The most frequent first: each case before a match costs a look.
            case PutAttribute(version, replaces, retain):
                statements.extend(_put_attribute(run_key, version, replaces, retain=retain))
            case PutStep(step, is_new, given):
                statements.append(_put_step(run_key, step, is_new=is_new, given=given))
            case AppendEvent(event):
                statements.append(
                    (
                        "INSERT INTO event (id, payload) VALUES (?, ?)",
                        (row_id(run_key, event.event_id), encode_event(event)),
                    )
                )
            case UpdateRun(run, bulk):
                statements.append(_update_run(run, bulk=bulk))
            case DeleteStep(ordinal):
                statements.append(("DELETE FROM step WHERE id = ?", (row_id(run_key, ordinal),)))
            case AddMessage(message):
                statements.append(
                    (
                        "INSERT INTO message (id, channel, message_id, pending, value)"
                        " VALUES (?, ?, ?, 1, ?)",
                        (
                            row_id(run_key, message.sequence),
                            message.channel,
                            message.message_id,
                            message.value,
                        ),
                    )
                )
            case RemoveMessage(sequence, retain):
                sql = (
                    "UPDATE message SET pending = 0 WHERE id = ?"
                    if retain
                    else "DELETE FROM message WHERE id = ?"
                )
                statements.append((sql, (row_id(run_key, sequence),)))
            case RecordRequest(request):
                statements.append(
                    (
                        "INSERT OR REPLACE INTO request (run, request_id, output) VALUES (?, ?, ?)",
                        (run_key, request.request_id, request.output),
                    )
                )
            case DeleteAttribute(replaces, at_version, retain):
                statements.extend(_replace(run_key, replaces, at_version, retain=retain))
            case PutIndexEntry(write):
                statements.append(_put_index_entry(run_key, write))
            case ForgetOldVersions():
                statements.append(
                    ("DELETE FROM attribute WHERE run = ? AND until IS NOT NULL", (run_key,))
                )
            case InsertRun(run):
                statements.extend(_insert_run(run))
            case _:
                assert_never(change)
    return statements


def _insert_run(run: FlowRun) -> list[Statement]:
    return [
        ("UPDATE run SET current = 0 WHERE flow_id = ? AND current = 1", (run.flow_id,)),
        (
            "INSERT INTO run (key, flow_id, run_id, first_run_id, run_attempt, flow_type,"
            " request_id, started_at, status, closed_at, current, busy, wake_at, header, bulk)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?)",
            (
                run.key,
                run.flow_id,
                run.run_id,
                run.first_run_id,
                run.run_attempt,
                run.flow_type,
                run.request_id,
                run.started_at,
                int(run.status),
                run.closed_at,
                run.is_busy,
                _wake_at(run),
                to_text(dump_header(run)),
                to_text(dump_bulk(run)),
            ),
        ),
    ]


def _update_run(run: FlowRun, *, bulk: bool) -> Statement:
    parameters: list[object] = [
        int(run.status),
        run.closed_at,
        run.is_busy,
        _wake_at(run),
        to_text(dump_header(run)),
    ]
    assignments = "status = ?, closed_at = ?, busy = ?, wake_at = ?, header = ?"
    if bulk:
        assignments += ", bulk = ?"
        parameters.append(to_text(dump_bulk(run)))
    return f"UPDATE run SET {assignments} WHERE key = ?", (*parameters, run.key)


def _wake_at(run: FlowRun) -> float | None:
    return run.wake_at if run.is_active else None


def _put_attribute(
    run_key: int, version: AttributeVersion, replaced: AttributeVersion | None, *, retain: bool
) -> list[Statement]:
    value: Statement = (
        "INSERT INTO attribute_value (id, value) VALUES (?, ?)",
        (row_id(run_key, version.version), version.value),
    )
    if replaced is not None and not retain and not replaced.hard_delete:
        # Nothing else has to be kept or erased, so the row of the old version becomes the new one.
        return [
            value,
            (
                f"UPDATE attribute SET version = ?, hard_delete = ? {_ONE_VERSION}",
                (version.version, version.hard_delete, *_version_key(run_key, replaced)),
            ),
        ]
    insert: Statement = (
        "INSERT INTO attribute (run, map, key, version, hard_delete) VALUES (?, ?, ?, ?, ?)",
        (*_version_key(run_key, version), version.hard_delete),
    )
    if replaced is None:
        return [value, insert]
    return [*_replace(run_key, replaced, version.version, retain=retain), value, insert]


def _replace(
    run_key: int, replaced: AttributeVersion, until: int, *, retain: bool
) -> list[Statement]:
    """Take a version out of force. Its value stays for history, unless it must leave no trace."""
    key = _version_key(run_key, replaced)
    erase = (
        "DELETE FROM attribute_value WHERE id = ?",
        (row_id(run_key, replaced.version),),
    )
    if replaced.hard_delete:
        return [erase, (f"DELETE FROM attribute {_ONE_VERSION}", key)]
    if retain:
        return [(f"UPDATE attribute SET until = ? {_ONE_VERSION}", (until, *key))]
    return [(f"DELETE FROM attribute {_ONE_VERSION}", key)]


def _version_key(run_key: int, version: AttributeVersion) -> tuple[int, str, str, int]:
    return run_key, map_of(version.key), version.key, version.version


def _put_step(run_key: int, step: StepExecution, *, is_new: bool, given: bool) -> Statement:
    rowid = row_id(run_key, step.ordinal)
    state = to_text(dump_state(step))
    if not is_new and not given:
        return "UPDATE step SET state = ? WHERE id = ?", (state, rowid)
    given_text = to_text(dump_given(step))
    if not is_new:
        return "UPDATE step SET state = ?, given = ? WHERE id = ?", (state, given_text, rowid)
    return (
        "INSERT INTO step (id, step_type, number, from_id, input, fixed, given, state)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            rowid,
            step.step_type,
            step.number,
            step.from_id,
            step.input,
            fixed_text(step),
            given_text,
            state,
        ),
    )


def _put_index_entry(run_key: int, write: IndexWrite) -> Statement:
    if write.value is None:
        return (
            "DELETE FROM index_entry WHERE run = ? AND index_key = ?",
            (run_key, write.index_key),
        )
    value = to_text(list(write.value)) if isinstance(write.value, tuple) else write.value
    return (
        "INSERT OR REPLACE INTO index_entry (run, index_key, type, value) VALUES (?, ?, ?, ?)",
        (run_key, write.index_key, int(write.type), value),
    )
