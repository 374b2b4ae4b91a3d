"""From the kernel's values to the frames a worker gets.

Field numbers are those of `InvokeWaitForMethodRequest`, `InvokeExecuteMethodRequest` and
`InvokeWorkerRPCRequest`; the first five are the same in all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dex.dexpb import dex_pb2 as pb

from dex_embedded._kernel.state import Snapshot
from dex_embedded._kernel.transition import HandOut
from dex_embedded._kernel.values import ChannelMessage, ConditionResults, Method, RecoveryError
from dex_embedded._runtime.frame_size import FrameTooLargeError, check_size
from dex_embedded._wire.wire_bytes import (
    message_field,
    number_field,
    pair,
    text_field,
    texts_field,
)

__all__ = ["FrameTooLargeError", "encode_rpc_task", "encode_step_task"]

_COMPLETED: Final = 2
_WAITING: Final = 1


def encode_step_task(task_id: str, work: HandOut) -> bytes:
    """The complete frame for one attempt of a method.

    Raises:
        FrameTooLargeError: The worker would refuse it.
    """
    context = pb.Context(
        flow_id=work.flow_id,
        run_id=work.run_id,
        flow_started_timestamp=int(work.flow_started_at),
        step_execution_id=work.ref.step_execution_id,
        first_attempt_timestamp=int(work.first_attempt_at),
        attempt=work.ref.attempt,
        from_step_execution_id=work.from_step_execution_id,
        run_attempt=work.run_attempt,
    )
    parts = [
        message_field(1, _with_progress(context, work.recovery_error, work.last_heartbeat)),
        text_field(2, work.flow_type),
        text_field(3, work.step_type),
        message_field(4, work.step_input),
        _attributes(work.snapshot),
    ]
    if work.method is Method.EXECUTE:
        parts.extend(message_field(6, pair(key, value)) for key, value in work.locals)
        if work.results is not None:
            parts.append(message_field(7, encode_condition_results(work.results)))
        parts.append(_channels(work.snapshot, first_field=8))
        request_field = 4
    else:
        parts.append(_channels(work.snapshot, first_field=6))
        request_field = 3
    request = b"".join(parts)
    return _task_frame(
        task_id, work.deadline, request_field, request, work.snapshot, work.step_input
    )


def encode_rpc_task(
    task_id: str,
    *,
    flow_id: str,
    run_id: str,
    run_attempt: int,
    flow_type: str,
    flow_started_at: float,
    rpc_name: str,
    rpc_input: bytes,
    snapshot: Snapshot,
    now: float,
    deadline: float,
) -> bytes:
    """The complete frame for one RPC call.

    Raises:
        FrameTooLargeError: The worker would refuse it.
    """
    context = pb.Context(
        flow_id=flow_id,
        run_id=run_id,
        flow_started_timestamp=int(flow_started_at),
        first_attempt_timestamp=int(now),
        attempt=1,
        run_attempt=run_attempt,
    )
    request = b"".join(
        (
            message_field(1, context.SerializeToString()),
            text_field(2, flow_type),
            text_field(3, rpc_name),
            message_field(4, rpc_input),
            _attributes(snapshot),
            _channels(snapshot, first_field=6),
        )
    )
    return _task_frame(task_id, deadline, 5, request, snapshot, rpc_input)


def _with_progress(
    context: pb.Context, recovery: RecoveryError | None, heartbeat: bytes | None
) -> bytes:
    if recovery is not None:
        context.recovery_error.SetInParent()
        context.recovery_error.detail = recovery.detail
        context.recovery_error.error_type = recovery.error_type
    encoded = context.SerializeToString()
    return encoded if heartbeat is None else encoded + message_field(9, heartbeat)


def _attributes(snapshot: Snapshot) -> bytes:
    return b"".join(
        message_field(5, pair(version.key, version.value)) for version in snapshot.attributes
    )


def _channels(snapshot: Snapshot, first_field: int) -> bytes:
    """Sizes, loaded messages and the echoed selection: five consecutive fields."""
    selection = snapshot.selection
    parts = [
        message_field(first_field, pair(name, number_field(1, size)))
        for name, size in snapshot.channel_sizes
    ]
    parts.extend(
        message_field(first_field + 1, pair(name, encode_messages(messages)))
        for name, messages in snapshot.messages
    )
    parts.append(texts_field(first_field + 2, selection.attribute_maps))
    parts.append(texts_field(first_field + 3, selection.channels))
    parts.append(texts_field(first_field + 4, selection.channel_maps))
    return b"".join(parts)


def encode_messages(messages: Sequence[ChannelMessage]) -> bytes:
    """A `ChannelValues`."""
    return b"".join(message_field(1, encode_message(message)) for message in messages)


def encode_message(message: ChannelMessage) -> bytes:
    value = message_field(2, message.value) if message.value else b""
    return text_field(1, message.channel) + value + text_field(3, message.message_id)


def encode_condition_results(results: ConditionResults) -> bytes:
    """A `ConditionResults`: one entry per condition, in declaration order."""
    channels = b"".join(
        message_field(
            1,
            text_field(1, result.condition_id)
            + number_field(2, _COMPLETED if result.completed else _WAITING)
            + text_field(3, result.channel)
            + b"".join(message_field(4, value) for value in result.values),
        )
        for result in results.channels
    )
    timers = b"".join(
        message_field(
            2,
            text_field(1, result.condition_id)
            + number_field(2, _COMPLETED if result.completed else _WAITING),
        )
        for result in results.timers
    )
    return channels + timers + number_field(3, results.wait_for_failed)


def _task_frame(
    task_id: str,
    deadline: float,
    request_field: int,
    request: bytes,
    snapshot: Snapshot,
    given_input: bytes,
) -> bytes:
    seconds = int(deadline)
    moment = number_field(1, seconds) + number_field(2, int((deadline - seconds) * 1e9))
    task = text_field(1, task_id) + message_field(2, moment) + message_field(request_field, request)
    frame = message_field(2, task)
    check_size(
        "the task",
        len(frame),
        lambda: [
            ("input", len(given_input)),
            *((version.key, len(version.value)) for version in snapshot.attributes),
            *(
                (f"channel {name}", sum(len(message.value) for message in messages))
                for name, messages in snapshot.messages
            ),
        ],
    )
    return frame
