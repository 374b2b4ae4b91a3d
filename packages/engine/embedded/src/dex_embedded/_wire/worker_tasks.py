"""WorkerTaskService: the engine's end of the streams that pull workers open.

One stream is one long-lived call with two halves: this handler reads frames and passes them on at
once, and one writer coroutine sends what the engine has put in the stream's line. There is never
more than one writer, because two overlapping writes lose a frame.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final, Protocol, TypeAlias, cast

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_embedded._kernel.errors import InvalidRequestError
from dex_embedded._kernel.values import Failure, FailureKind, Method
from dex_embedded._runtime.call_errors import CallError, invalid
from dex_embedded._runtime.engine import Engine
from dex_embedded._runtime.faults import CONTROL_AFTER, CONTROL_BEFORE, SEND_AFTER, SEND_BEFORE
from dex_embedded._runtime.log_fields import about
from dex_embedded._runtime.tasks import alongside
from dex_embedded._runtime.worker_streams import (
    CancelTask,
    Offer,
    Ping,
    Reconnect,
    Registered,
    TaskFrame,
    WorkerStream,
)
from dex_embedded._wire import decode
from dex_embedded._wire.errors import Abortable, abort_with
from dex_embedded._wire.line import Line, LineEnd

_LOGGER = logging.getLogger(__name__)

_EOF: Final = grpc.aio.EOF
_DEATH_SHOWS_WITHIN: Final = 0.02
"""A killed worker can look like one that half-closed; its call is cancelled within this time."""
_FRAME_LEAVES_WITHIN: Final = 5.0
"""A half-closed worker still reads, so the frame that is being written leaves well before this."""
_WORKER_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")

_REGISTERED: Final = pb.PollWorkerTaskResponse(
    registered=pb.PollWorkerTaskRegistered(supports_unknown_name_rejection=True)
).SerializeToString()
_PING: Final = pb.PollWorkerTaskResponse(ping=pb.PollWorkerTaskPing()).SerializeToString()


class StreamCall(Abortable, Protocol):
    """The part of a gRPC stream used here."""

    async def read(self) -> object: ...
    async def write(self, message: bytes) -> None: ...


class WorkerTaskService:
    """Serves `PollWorkerTask`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def poll_worker_task(self, _requests: object, context: StreamCall) -> None:
        """One stream, from its `register` to its end."""
        try:
            leave = self._engine.admission.enter_stream()
        except CallError as error:
            await abort_with(context, error)
        try:
            await self._serve(context)
        finally:
            leave()

    async def _serve(self, context: StreamCall) -> None:
        register = await self._read_register(context)
        serving = asyncio.current_task()
        assert serving is not None

        def break_off() -> None:
            worker = register.app_worker_id
            _LOGGER.warning(
                "worker %s does not read its stream; it is ended",
                worker,
                extra=about(worker=worker),
            )
            serving.cancel()

        line = Line(self._engine.bounds.frames_per_stream, break_off)
        stream = self._engine.workers.stream_opened(
            register.app_worker_id,
            register.queue,
            frozenset(register.flow_types),
            line.put,
            line.close,
        )
        try:
            async with alongside(self._write(line, context)) as writing:
                await self._receive_until_end(stream, context)
                self._take_back_unsent(stream, line)
                if stream.offer is not None and stream.offer.sent:
                    await asyncio.sleep(_DEATH_SHOWS_WITHIN)
                self._engine.workers.stream_retired(stream)
                # The status of a call cannot be sent while a frame is: the worker would wait for
                # the end of its stream until it gives up.
                await asyncio.wait({writing}, timeout=_FRAME_LEAVES_WITHIN)
        finally:
            self._take_back_unsent(stream, line)
            # Does nothing after an orderly end; otherwise the worker or its connection is gone.
            self._engine.workers.stream_lost(stream)

    @staticmethod
    def _take_back_unsent(stream: WorkerStream, line: Line) -> None:
        """What still waits for the writer was never sent: a task among it has not run for sure."""
        if line.abandon() and stream.offer is not None:
            stream.offer.sent = False

    async def _receive_until_end(self, stream: WorkerStream, context: StreamCall) -> None:
        while (frame := await context.read()) is not _EOF:
            self._receive(stream, cast(pb.PollWorkerTaskRequest, frame))
            if stream.unsaved > self._engine.bounds.unsaved_bytes:
                # Not read, what the worker sends next waits on its side.
                await self._engine.workers.saved(stream)

    async def _read_register(self, context: StreamCall) -> pb.PollWorkerTaskRegister:
        first = await context.read()
        if first is _EOF:
            await abort_with(context, invalid("the stream ended before it registered"))
        frame = cast(pb.PollWorkerTaskRequest, first)
        if frame.WhichOneof("frame") != "register":
            await abort_with(context, invalid("the first frame of a stream must be register"))
        register = frame.register
        if not _WORKER_ID.fullmatch(register.app_worker_id):
            await abort_with(
                context,
                invalid("app_worker_id must be 1 to 63 ASCII letters, digits, dots, _ or -"),
            )
        if register.app_worker_id in register.flow_types:
            await abort_with(context, invalid("app_worker_id must not be a flow type"))
        if register.queue != register.app_worker_id and register.queue not in register.flow_types:
            await abort_with(
                context, invalid("queue must be the app_worker_id or one of the flow types")
            )
        return register

    async def _write(self, line: Line, context: StreamCall) -> None:
        faults = self._engine.faults
        while True:
            frame = await line.take()
            match frame:
                case TaskFrame(payload, subject):
                    faults.reach(SEND_BEFORE, subject)
                    await context.write(payload)
                    faults.reach(SEND_AFTER, subject)
                case LineEnd.BY_ENGINE:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine ends this stream")
                case LineEnd.BY_WORKER:
                    return
                case _:
                    kind, payload = _control_frame(frame)
                    faults.reach(CONTROL_BEFORE, kind)
                    await context.write(payload)
                    faults.reach(CONTROL_AFTER, kind)

    # --- frames ----------------------------------------------------------------------------------

    def _receive(self, stream: WorkerStream, frame: pb.PollWorkerTaskRequest) -> None:
        workers = self._engine.workers
        workers.frame_arrived(stream)
        offer = stream.offer
        match frame.WhichOneof("frame"):
            case "task_frame" if offer is not None and offer.task_id == frame.task_frame.task_id:
                self._receive_task_frame(offer, frame.task_frame)
            case "reject" if offer is not None and offer.task_id == frame.reject.task_id:
                unknown = frame.reject.reason in (
                    pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_STEP,
                    pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_RPC,
                )
                workers.rejected(stream, name_unknown=unknown)
            case "pong":
                workers.answered_ping(stream)
            case _:
                # A late frame of a task this stream no longer carries.
                pass

    def _receive_task_frame(self, offer: Offer, frame: pb.PollWorkerTaskFrame) -> None:
        workers = self._engine.workers
        expected = workers.expects(offer)
        match frame.WhichOneof("output"):
            case "worker_error":
                workers.failed(offer, decode.decode_worker_error(frame.worker_error))
            case "wait_for" if expected is Method.WAIT_FOR:
                self._receive_step_output(offer, frame.wait_for)
            case "execute" if expected is Method.EXECUTE:
                self._receive_step_output(offer, frame.execute)
            case "rpc" if expected is None:
                try:
                    result = decode.decode_rpc_result(frame.rpc)
                except InvalidRequestError as error:
                    workers.failed(offer, _invalid_result(error))
                else:
                    workers.rpc_finished(offer, result)
            case other:
                problem = f"the worker answered with {other or 'an empty frame'}"
                workers.failed(offer, _invalid_result(InvalidRequestError(problem)))

    def _receive_step_output(self, offer: Offer, output: _StepOutput) -> None:
        workers = self._engine.workers
        try:
            match output.WhichOneof("output"):
                case "heartbeat":
                    beat = output.heartbeat
                    value = decode.decode_optional_value(beat, "value", beat.value)
                    workers.heartbeat(offer, value)
                case "stream_write":
                    write = output.stream_write
                    workers.stream_write(
                        offer,
                        write.stream_name,
                        write.stream_capacity_bytes,
                        decode.decode_value(write.value, "stream message"),
                    )
                case "result":
                    if isinstance(output, pb.InvokeWaitForMethodOutput):
                        result = decode.decode_wait_for_result(output.result)
                        workers.wait_for_finished(offer, result)
                    else:
                        workers.execute_finished(offer, decode.decode_execute_result(output.result))
                case _:
                    raise InvalidRequestError("the worker sent an output without content")
        except InvalidRequestError as error:
            workers.failed(offer, _invalid_result(error))


_StepOutput: TypeAlias = pb.InvokeWaitForMethodOutput | pb.InvokeExecuteMethodOutput


def _control_frame(frame: Registered | Ping | CancelTask | Reconnect) -> tuple[str, bytes]:
    """A frame without a task: its kind, as the protocol calls it, and its bytes."""
    match frame:
        case Registered():
            return "registered", _REGISTERED
        case Ping():
            return "ping", _PING
        case CancelTask(task_id):
            cancel = pb.PollWorkerTaskCancelTask(task_id=task_id)
            return "cancel_task", _frame_bytes(pb.PollWorkerTaskResponse(cancel_task=cancel))
        case Reconnect(reason):
            reconnect = pb.PollWorkerTaskReconnect(reason=reason)
            return "reconnect", _frame_bytes(pb.PollWorkerTaskResponse(reconnect=reconnect))


def _frame_bytes(frame: pb.PollWorkerTaskResponse) -> bytes:
    return frame.SerializeToString()


def _invalid_result(error: InvalidRequestError) -> Failure:
    return Failure(kind=FailureKind.INVALID_RESULT, detail=f"invalid result: {error}")
