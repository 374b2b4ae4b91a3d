"""The stored form of what has no columns of its own: JSON text, field by field.

Absent fields mean the default, so a field can be added without a new format version. Bytes are
written as text of the same code points (Latin-1): exact, and compact enough for values that are
mostly text. The kernel's classes are rebuilt only through the functions here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dex_embedded._kernel.state import (
    FlowRun,
    Invocation,
    QueuedStep,
    StepExecution,
    Timer,
    Wait,
)
from dex_embedded._kernel.values import (
    ChannelCondition,
    ChannelResult,
    ConditionResults,
    Durability,
    Failure,
    FailureKind,
    MethodOptions,
    RecoveryError,
    RetryPolicy,
    Routing,
    RoutingSource,
    Selection,
    StepMovement,
    StepOptions,
    StepOutput,
    TimerCondition,
    TimerResult,
    TimerStatus,
    WaitingCondition,
    WaitingType,
)

Record = dict[str, Any]
"""A JSON object; its shape is known only to the pair of functions that write and read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """A snapshot without its values."""

    as_of: int
    channel_sizes: tuple[tuple[str, int], ...]
    sequences: tuple[tuple[str, tuple[int, ...]], ...]
    """The sequences of the messages it shows, by channel."""


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_text(record: object) -> str:
    return _encode(record)


def from_text(text: str) -> Record:
    return json.loads(text)


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _without_defaults(record: Mapping[str, object]) -> Record:
    return {key: value for key, value in record.items() if value}


# --- options ---------------------------------------------------------------------------------


def dump_options(options: StepOptions) -> Record:
    failure_options = options.failure_step_options
    return _without_defaults(
        {
            "skip_wait_for": options.skip_wait_for,
            "heartbeat": options.heartbeat_timeout,
            "wait_for": _dump_method(options.wait_for),
            "execute": _dump_method(options.execute),
            "failure_step": options.failure_step_type,
            # Present but all-default options are not the same as none.
            "failure_options": None if failure_options is None else [dump_options(failure_options)],
            "wire": _text(options.wire),
        }
    )


def load_options(record: Record) -> StepOptions:
    failure_options = record.get("failure_options")
    return StepOptions(
        skip_wait_for=record.get("skip_wait_for", False),
        heartbeat_timeout=record.get("heartbeat", 0),
        wait_for=_load_method(record.get("wait_for", {})),
        execute=_load_method(record.get("execute", {})),
        failure_step_type=record.get("failure_step", ""),
        failure_step_options=load_options(failure_options[0]) if failure_options else None,
        wire=_bytes(record.get("wire", "")),
    )


def _dump_method(options: MethodOptions) -> Record:
    retry = options.retry
    selection = options.selection
    return _without_defaults(
        {
            "timeout": options.timeout,
            "retry": _without_defaults(
                {
                    "initial": retry.initial_interval,
                    "coefficient": retry.backoff_coefficient,
                    "maximum": retry.maximum_interval,
                    "attempts": retry.maximum_attempts,
                    "total": retry.total_duration,
                }
            ),
            "durability": int(options.durability),
            "locks": options.lock_keys,
            "load_maps": selection.attribute_maps,
            "load_channels": selection.channels,
            "load_channel_maps": selection.channel_maps,
            "proceed": options.proceed_on_failure,
        }
    )


def _load_method(record: Record) -> MethodOptions:
    retry = record.get("retry", {})
    return MethodOptions(
        timeout=record.get("timeout", 0),
        retry=RetryPolicy(
            initial_interval=retry.get("initial", 0),
            backoff_coefficient=retry.get("coefficient", 0.0),
            maximum_interval=retry.get("maximum", 0),
            maximum_attempts=retry.get("attempts", 0),
            total_duration=retry.get("total", 0),
        ),
        durability=Durability(record.get("durability", 0)),
        lock_keys=tuple(record.get("locks", ())),
        selection=Selection(
            attribute_maps=tuple(record.get("load_maps", ())),
            channels=tuple(record.get("load_channels", ())),
            channel_maps=tuple(record.get("load_channel_maps", ())),
        ),
        proceed_on_failure=record.get("proceed", False),
    )


# --- steps -----------------------------------------------------------------------------------


def dump_fixed(step: StepExecution) -> Record:
    """What never changes about an execution and has no column."""
    return _without_defaults(
        {
            "options": dump_options(step.options),
            "recovery_error": _dump_recovery(step.recovery_error),
        }
    )


_REMEMBERED_OPTIONS = 1_000
_options_texts: dict[int, tuple[StepOptions, str]] = {}
"""The text of options by identity: a step type usually comes with the same object every time. The
object is kept, so that its identity cannot pass to another."""


def fixed_text(step: StepExecution) -> str:
    """The text of `dump_fixed`."""
    if step.recovery_error is not None:
        return to_text(dump_fixed(step))
    remembered = _options_texts.get(id(step.options))
    if remembered is None:
        if len(_options_texts) >= _REMEMBERED_OPTIONS:
            _options_texts.clear()
        remembered = (step.options, to_text(dump_fixed(step)))
        _options_texts[id(step.options)] = remembered
    return remembered[1]


def load_fixed(record: Record) -> tuple[StepOptions, RecoveryError | None]:
    return load_options(record.get("options", {})), _load_recovery(record.get("recovery_error"))


def dump_given(step: StepExecution) -> Record:
    """What Execute is given besides its snapshot."""
    return _without_defaults(
        {
            "results": None if step.results is None else [_dump_results(step.results)],
            "locals": [[key, _text(value)] for key, value in step.locals],
            "wait_for_error": _dump_recovery(step.wait_for_error),
        }
    )


def load_given(
    record: Record,
) -> tuple[ConditionResults | None, tuple[tuple[str, bytes], ...], RecoveryError | None]:
    results = record.get("results")
    return (
        _load_results(results[0]) if results else None,
        tuple((key, _bytes(value)) for key, value in record.get("locals", ())),
        _load_recovery(record.get("wait_for_error")),
    )


def dump_state(step: StepExecution) -> Record:
    """What changes about an execution. A snapshot is its moment and what is cheap to keep; the
    values are in the tables of attributes and messages."""
    return _without_defaults(
        {
            "method": int(step.method),
            "phase": int(step.phase),
            "invocation": None if step.invocation is None else _dump_invocation(step.invocation),
            "wait": None if step.wait is None else _dump_wait(step.wait),
            "consumed": step.consumed,
            "locks": step.held_locks,
            "wait_for_routing": _dump_routing(step.wait_for_routing),
        }
    )


def load_wait(record: Record) -> Wait | None:
    stored = record.get("wait")
    return None if stored is None else _load_wait(stored)


def load_wait_for_routing(record: Record) -> Routing:
    return _load_routing(record.get("wait_for_routing"))


def _dump_invocation(invocation: Invocation) -> Record:
    snapshot = invocation.snapshot
    return _without_defaults(
        {
            "attempt": invocation.attempt,
            "first_at": invocation.first_attempt_at,
            "handed_out_at": invocation.handed_out_at,
            "retry_at": invocation.retry_at,
            "last_failure": _dump_failure(invocation.last_failure),
            "heartbeat": _dump_present(invocation.heartbeat),
            "received_heartbeat": _dump_present(invocation.received_heartbeat),
            "free_reoffers": invocation.free_reoffers,
            "ready_since": invocation.ready_since,
            "waited": invocation.waited,
            "lock_order": invocation.lock_order,
            "routing": _dump_routing(invocation.routing),
            "snapshot": None
            if snapshot is None
            else {
                "as_of": snapshot.as_of,
                "sizes": snapshot.channel_sizes,
                "messages": [
                    [name, [message.sequence for message in messages]]
                    for name, messages in snapshot.messages
                ],
            },
        }
    )


def load_invocation(record: Record) -> Invocation | None:
    """The invocation without its snapshot, which `load_snapshot_record` points to."""
    stored = record.get("invocation")
    if stored is None:
        return None
    return Invocation(
        attempt=stored["attempt"],
        first_attempt_at=stored.get("first_at"),
        handed_out_at=stored.get("handed_out_at"),
        retry_at=stored.get("retry_at"),
        last_failure=_load_failure(stored.get("last_failure")),
        heartbeat=_load_present(stored.get("heartbeat")),
        received_heartbeat=_load_present(stored.get("received_heartbeat")),
        free_reoffers=stored.get("free_reoffers", 0),
        ready_since=stored.get("ready_since"),
        waited=stored.get("waited", 0.0),
        lock_order=stored.get("lock_order", 0),
        routing=_load_routing(stored.get("routing")),
    )


def load_snapshot_record(record: Record) -> SnapshotRecord | None:
    """What is stored of the snapshot of the invocation, if it has one."""
    invocation: Record = record.get("invocation", {})
    stored: Record | None = invocation.get("snapshot")
    if stored is None:
        return None
    return SnapshotRecord(
        as_of=stored["as_of"],
        channel_sizes=tuple((name, size) for name, size in stored["sizes"]),
        sequences=tuple((name, tuple(shown)) for name, shown in stored["messages"]),
    )


def _dump_present(value: bytes | None) -> list[str] | None:
    """A list of one keeps an empty value apart from none."""
    return None if value is None else [_text(value)]


def _load_present(stored: list[str] | None) -> bytes | None:
    return None if stored is None else _bytes(stored[0])


def _dump_routing(routing: Routing) -> Record:
    return _without_defaults(
        {
            "by": routing.served_by,
            "source": int(routing.source),
            "sticky": routing.sticky_worker,
        }
    )


def _load_routing(stored: Record | None) -> Routing:
    stored = stored or {}
    return Routing(
        served_by=stored.get("by", ""),
        source=RoutingSource(stored.get("source", 0)),
        sticky_worker=stored.get("sticky", ""),
    )


def _dump_recovery(error: RecoveryError | None) -> list[str] | None:
    return None if error is None else [error.detail, error.error_type]


def _load_recovery(stored: list[str] | None) -> RecoveryError | None:
    return None if stored is None else RecoveryError(detail=stored[0], error_type=stored[1])


def _dump_failure(failure: Failure | None) -> Record | None:
    if failure is None:
        return None
    return _without_defaults(
        {
            "kind": failure.kind.value,
            "detail": failure.detail,
            "type": failure.error_type,
            "stack": failure.stack_trace,
            "grpc_status": failure.grpc_status,
            "retry_after": failure.retry_after,
            "attempt": failure.attempt,
        }
    )


def _load_failure(stored: Record | None) -> Failure | None:
    if stored is None:
        return None
    return Failure(
        kind=FailureKind(stored["kind"]),
        detail=stored.get("detail", ""),
        error_type=stored.get("type", ""),
        stack_trace=stored.get("stack", ""),
        grpc_status=stored.get("grpc_status", 0),
        retry_after=stored.get("retry_after", 0),
        attempt=stored.get("attempt", 0),
    )


def _dump_wait(wait: Wait) -> Record:
    condition = wait.condition
    return _without_defaults(
        {
            "type": int(condition.type),
            "timers": [
                [timer.condition_id, timer.duration, running.firing_at, int(running.status)]
                for timer, running in zip(condition.timers, wait.timers, strict=True)
            ],
            "channels": [
                [channel.condition_id, channel.channel, channel.at_least, channel.at_most]
                for channel in condition.channels
            ],
            "combinations": condition.combinations,
        }
    )


def _load_wait(stored: Record) -> Wait:
    timers = stored.get("timers", ())
    return Wait(
        condition=WaitingCondition(
            type=WaitingType(stored.get("type", 0)),
            timers=tuple(
                TimerCondition(condition_id=name, duration=duration)
                for name, duration, _, _ in timers
            ),
            channels=tuple(
                ChannelCondition(
                    condition_id=name, channel=channel, at_least=at_least, at_most=at_most
                )
                for name, channel, at_least, at_most in stored.get("channels", ())
            ),
            combinations=tuple(tuple(ids) for ids in stored.get("combinations", ())),
        ),
        timers=[
            Timer(firing_at=firing_at, status=TimerStatus(status))
            for _, _, firing_at, status in timers
        ],
    )


def _dump_results(results: ConditionResults) -> Record:
    return _without_defaults(
        {
            "timers": [[timer.condition_id, timer.completed] for timer in results.timers],
            "channels": [
                [
                    channel.condition_id,
                    channel.channel,
                    channel.completed,
                    [_text(value) for value in channel.values],
                ]
                for channel in results.channels
            ],
            "wait_for_failed": results.wait_for_failed,
        }
    )


def _load_results(stored: Record) -> ConditionResults:
    return ConditionResults(
        timers=tuple(
            TimerResult(condition_id=name, completed=completed)
            for name, completed in stored.get("timers", ())
        ),
        channels=tuple(
            ChannelResult(
                condition_id=name,
                channel=channel,
                completed=completed,
                values=tuple(_bytes(value) for value in values),
            )
            for name, channel, completed, values in stored.get("channels", ())
        ),
        wait_for_failed=stored.get("wait_for_failed", False),
    )


# --- runs ------------------------------------------------------------------------------------


def dump_header(run: FlowRun) -> Record:
    """The small part of a run that changes often."""
    return _without_defaults(
        {
            "error_type": int(run.error_type),
            "error_message": run.error_message,
            "completing": run.completing,
            "attribute_clock": run.attribute_clock,
            "message_clock": run.message_clock,
            "step_clock": run.step_clock,
            "event_clock": run.event_clock,
            "lock_clock": run.lock_clock,
            "step_counts": run.step_counts,
            "start_due_at": run.start_due_at,
            "sticky_worker": run.sticky_worker,
            "old_versions": run.has_old_versions,
        }
    )


def dump_bulk(run: FlowRun) -> Record:
    """The part of a run that may be large and changes rarely."""
    return _without_defaults(
        {
            "config": _text(run.config),
            "durability": int(run.default_durability),
            "outputs": [
                [output.step_type, output.step_execution_id, _text(output.value)]
                for output in run.outputs
            ],
            "queue": [
                {
                    "step_type": queued.movement.step_type,
                    "input": _text(queued.movement.input),
                    "options": dump_options(queued.movement.options),
                    "from": queued.from_id,
                    "recovery_error": _dump_recovery(queued.recovery_error),
                }
                for queued in run.queue
            ],
        }
    )


def fill_bulk(run: FlowRun, record: Record) -> None:
    run.config = _bytes(record.get("config", ""))
    run.default_durability = Durability(record.get("durability", 0))
    run.outputs = [
        StepOutput(step_type=step_type, step_execution_id=step_id, value=_bytes(value))
        for step_type, step_id, value in record.get("outputs", ())
    ]
    run.queue = [
        QueuedStep(
            movement=StepMovement(
                step_type=queued["step_type"],
                input=_bytes(queued["input"]),
                options=load_options(queued["options"]),
            ),
            from_id=queued["from"],
            recovery_error=_load_recovery(queued["recovery_error"]),
        )
        for queued in record.get("queue", ())
    ]
