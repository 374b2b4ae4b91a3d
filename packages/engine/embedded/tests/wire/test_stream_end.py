"""How a worker's stream ends, frame by frame, without a wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_embedded._runtime.bounds import Admission, Bounds
from dex_embedded._runtime.engine import Engine
from dex_embedded._runtime.faults import Faults
from dex_embedded._runtime.worker_streams import OutgoingFrame, Ping, TaskFrame
from dex_embedded._wire.worker_tasks import WorkerTaskService


class _Offer:
    sent = True


class _Stream:
    offer: _Offer | None = None
    unsaved = 0


class _Workers:
    """Takes one stream in and has frames for it at once."""

    def __init__(self, frames: Sequence[OutgoingFrame]) -> None:
        self.frames = frames
        self.stream = _Stream()
        self.retired = asyncio.Event()
        self.was_lost = False

    def stream_opened(
        self,
        _worker: str,
        _queue: str,
        _flow_types: frozenset[str],
        send: Callable[[OutgoingFrame], None],
        close: Callable[[], None],
    ) -> object:
        self.send, self.close = send, close
        for frame in self.frames:
            send(frame)
        return self.stream

    def stream_retired(self, _stream: object) -> None:
        self.retired.set()

    def stream_lost(self, _stream: object) -> None:
        """Always called at the end; after an orderly one it means nothing."""
        self.was_lost = True


class _Engine:
    def __init__(self, *frames: OutgoingFrame) -> None:
        self.workers = _Workers(frames)
        self.faults = Faults({})
        self.bounds = Bounds(frames_per_stream=3)
        self.admission = Admission(self.bounds)


class _Call:
    """A worker that half-closes while the engine is writing to it."""

    def __init__(self) -> None:
        self.is_writing = asyncio.Event()
        self.may_finish = asyncio.Event()
        self.written = 0
        self.stays_open = False
        self._has_registered = False

    async def read(self) -> object:
        if not self._has_registered:
            self._has_registered = True
            register = pb.PollWorkerTaskRegister(queue="F", app_worker_id="w", flow_types=["F"])
            return pb.PollWorkerTaskRequest(register=register)
        await self.is_writing.wait()
        if self.stays_open:
            await asyncio.Event().wait()
        return grpc.aio.EOF

    async def write(self, _message: bytes) -> None:
        self.is_writing.set()
        await self.may_finish.wait()
        self.written += 1


async def serve(engine: _Engine, call: _Call) -> asyncio.Task[None]:
    """Let the worker half-close while the first frame is being written."""
    service = WorkerTaskService(cast(Engine, engine))
    serving = asyncio.create_task(service.poll_worker_task(None, cast(Any, call)))
    await asyncio.wait_for(call.is_writing.wait(), 10)
    await asyncio.wait_for(engine.workers.retired.wait(), 10)
    return serving


async def test_a_call_ends_only_after_the_frame_that_is_being_written() -> None:
    engine, call = _Engine(Ping()), _Call()
    serving = await serve(engine, call)
    assert not serving.done()
    call.may_finish.set()
    await asyncio.wait_for(serving, 10)
    assert call.written == 1


async def test_a_task_that_still_waits_for_the_writer_counts_as_never_sent() -> None:
    engine, call = _Engine(Ping(), TaskFrame(b"task", "Step")), _Call()
    offer = engine.workers.stream.offer = _Offer()
    serving = await serve(engine, call)
    assert not offer.sent
    call.may_finish.set()
    await asyncio.wait_for(serving, 10)
    assert call.written == 1


async def test_a_task_that_is_being_written_counts_as_sent() -> None:
    engine, call = _Engine(TaskFrame(b"task", "Step")), _Call()
    offer = engine.workers.stream.offer = _Offer()
    serving = await serve(engine, call)
    assert offer.sent
    call.may_finish.set()
    await asyncio.wait_for(serving, 10)


async def test_a_worker_that_never_reads_loses_its_stream_when_frames_pile_up() -> None:
    engine, call = _Engine(*(Ping() for _ in range(3))), _Call()
    service = WorkerTaskService(cast(Engine, engine))
    call.stays_open = True
    serving = asyncio.create_task(service.poll_worker_task(None, cast(Any, call)))
    await asyncio.wait_for(call.is_writing.wait(), 10)
    for _ in range(2):
        engine.workers.send(Ping())
    await asyncio.wait({serving}, timeout=10)
    assert serving.cancelled()
    assert engine.workers.was_lost
    assert engine.admission.worker_streams == 0


async def test_a_stream_whose_end_is_asked_for_twice_is_broken_off() -> None:
    engine, call = _Engine(Ping()), _Call()
    service = WorkerTaskService(cast(Engine, engine))
    call.stays_open = True
    serving = asyncio.create_task(service.poll_worker_task(None, cast(Any, call)))
    await asyncio.wait_for(call.is_writing.wait(), 10)
    engine.workers.close()
    await asyncio.sleep(0)
    assert not serving.done()
    engine.workers.close()
    await asyncio.wait({serving}, timeout=10)
    assert serving.cancelled()
