"""Worker streams with any frames in any order: the engine ends them or goes on, and stays whole."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from engine_testing.hostile import messages
from engine_testing.threaded import engine_thread
from google.protobuf.empty_pb2 import Empty
from hypothesis import given, settings
from hypothesis import strategies as st

from dex_embedded._store.check import check_file

OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
_numbers = itertools.count(1)

Frame = pb.PollWorkerTaskRequest


@dataclass
class Engine:
    channel: grpc.Channel

    def unary(self, name: str, request: Any, reply: Any) -> Any:
        method: Any = self.channel.unary_unary(f"/dex.FlowService/{name}")
        return reply.FromString(method(request.SerializeToString(), timeout=20))

    def start_flow(self) -> str:
        """Starts a flow whose type has the name of its id, so that its tasks are found alone."""
        flow_id = f"hostile-{next(_numbers)}"
        start = pb.StartFlowRequest(
            flow_id=flow_id,
            flow_type=flow_id,
            start_step_type="Start",
            step_options=pb.StepOptions(skip_wait_for=True),
            request_id=flow_id,
        )
        self.unary("StartFlow", start, pb.StartFlowResponse)
        return flow_id

    def closed(self, flow_id: str) -> int:
        """Waits for the end of a flow; returns its status."""
        request = pb.WaitForFlowRequest(flow_id=flow_id, wait_time_seconds=10)
        return self.unary("WaitForFlow", request, pb.FlowResult).flow_status

    def status_of(self, flow_id: str) -> int:
        request = pb.GetFlowSummaryRequest(flow_id=flow_id)
        return self.unary("GetFlowSummary", request, pb.GetFlowSummaryResponse).flow_status


class Stream:
    """One worker stream, frame by frame, as bytes."""

    def __init__(self, engine: Engine) -> None:
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method: Any = engine.channel.stream_stream("/dex.WorkerTaskService/PollWorkerTask")
        self._call = method(iter(self._frames.get, None), timeout=20)

    def send(self, frame: Any) -> None:
        self._frames.put(frame if isinstance(frame, bytes) else frame.SerializeToString())

    def read(self) -> pb.PollWorkerTaskResponse | None:
        """The next frame; None when the engine has ended the stream."""
        try:
            return pb.PollWorkerTaskResponse.FromString(next(self._call))
        except (StopIteration, grpc.RpcError):
            return None

    def read_task(self) -> pb.PollWorkerTaskResponse:
        while True:
            frame = self.read()
            assert frame is not None, self.status()
            if frame.HasField("ping"):
                self.send(Frame(pong=pb.PollWorkerTaskPong()))
            elif frame.HasField("task"):
                return frame

    def half_close(self) -> None:
        self._frames.put(None)

    def status(self) -> grpc.StatusCode:
        return self._call.code()

    def close(self) -> None:
        self._frames.put(None)
        self._call.cancel()


@contextmanager
def opened(engine: Engine, flow_type: str = "Idle", *, registers: bool = True) -> Generator[Stream]:
    stream = Stream(engine)
    try:
        if registers:
            stream.send(register(f"worker-{next(_numbers)}", flow_type))
            first = stream.read()
            assert first is not None
            assert first.HasField("registered")
        yield stream
    finally:
        stream.close()


def register(worker: str, flow_type: str = "Idle") -> Frame:
    return Frame(
        register=pb.PollWorkerTaskRegister(
            queue=flow_type, app_worker_id=worker, flow_types=[flow_type]
        )
    )


def completed(task_id: str) -> Frame:
    decision = pb.StepDecision(
        close_decision=pb.CloseDecision(
            close_decision_type=pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE
        )
    )
    result = pb.InvokeExecuteMethodResponse(step_decision=decision)
    output = pb.InvokeExecuteMethodOutput(result=result)
    return Frame(task_frame=pb.PollWorkerTaskFrame(task_id=task_id, execute=output))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[Engine]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with engine_thread(folder) as address, grpc.insecure_channel(address) as channel:
        yield Engine(channel)
    assert check_file(folder / "dex.sqlite3").problems == ()


@pytest.fixture(autouse=True)
def goes_on(engine: Engine, caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """After every test a flow is served from start to end, and nothing failed inside."""
    yield
    engine.unary("HealthCheck", Empty(), pb.HealthInfo)
    flow_id = engine.start_flow()
    with opened(engine, flow_id) as stream:
        stream.send(completed(stream.read_task().task.task_id))
        assert engine.closed(flow_id) == pb.FLOW_STATUS_COMPLETED
    assert not [record for record in caplog.records if "failed:" in record.getMessage()]


def test_a_stream_must_begin_with_a_register_it_can_be_held_to(engine: Engine) -> None:
    worker = "worker"
    firsts = (
        Frame(),
        Frame(pong=pb.PollWorkerTaskPong()),
        completed("task"),
        register(""),
        register("w" * 64),
        register("w w"),
        register("w\n"),
        register("Idle"),
        Frame(register=pb.PollWorkerTaskRegister(app_worker_id=worker, flow_types=["F"])),
        Frame(
            register=pb.PollWorkerTaskRegister(
                app_worker_id=worker, queue="Other", flow_types=["F"]
            )
        ),
        b"\x0a\xff\xff",
    )
    for first in firsts:
        with opened(engine, registers=False) as stream:
            stream.send(first)
            assert stream.read() is None
            assert stream.status() is grpc.StatusCode.INVALID_ARGUMENT, first


@settings(max_examples=100)
@given(first=messages(Frame) | st.binary(max_size=40))
def test_any_first_frame_gets_an_answer(engine: Engine, first: Any) -> None:
    with opened(engine, registers=False) as stream:
        stream.send(first)
        stream.half_close()
        while stream.read() is not None:
            pass
        assert stream.status() not in OURS


@settings(max_examples=60)
@given(frames=st.lists(messages(Frame), max_size=6), last=st.binary(max_size=20))
def test_any_frames_on_an_idle_stream_are_survived(
    engine: Engine, frames: list[Any], last: bytes
) -> None:
    with opened(engine) as stream:
        for frame in frames:
            stream.send(frame)
        stream.send(last)
        stream.half_close()
        while stream.read() is not None:
            pass
        assert stream.status() not in OURS


@settings(max_examples=60)
@given(outputs=st.lists(messages(pb.PollWorkerTaskFrame, 5), min_size=1, max_size=3))
def test_any_outputs_for_a_task_leave_its_flow_in_one_piece(
    engine: Engine, outputs: list[Any]
) -> None:
    flow_id = engine.start_flow()
    with opened(engine, flow_id) as stream:
        task_id = stream.read_task().task.task_id
        for output in outputs:
            output.task_id = task_id
            stream.send(Frame(task_frame=output))
        stream.half_close()
        while stream.read() is not None:
            pass
        assert stream.status() not in OURS
    stop = pb.StopFlowRequest(flow_id=flow_id, stop_type=pb.STOP_TYPE_TERMINATE)
    if engine.status_of(flow_id) == pb.FLOW_STATUS_RUNNING:
        engine.unary("StopFlow", stop, Empty)


def test_a_result_that_comes_twice_counts_once(engine: Engine) -> None:
    flow_id = engine.start_flow()
    with opened(engine, flow_id) as stream:
        task_id = stream.read_task().task.task_id
        for _ in range(3):
            stream.send(completed(task_id))
        assert engine.closed(flow_id) == pb.FLOW_STATUS_COMPLETED
    history = engine.unary(
        "GetHistoryEvents",
        pb.GetHistoryEventsRequest(flow_id=flow_id, estimate_page_size=100),
        pb.GetHistoryEventsResponse,
    )
    kinds = [event.WhichOneof("payload") for event in history.events]
    assert kinds.count("step_execute_completed") == 1
    assert kinds.count("flow_closed") == 1


@pytest.mark.parametrize("of", ["", "unknown", "another's"])
def test_a_result_for_a_task_the_stream_does_not_carry_changes_nothing(
    engine: Engine, of: str
) -> None:
    flow_id = engine.start_flow()
    with opened(engine, flow_id) as stream, opened(engine) as other:
        task_id = stream.read_task().task.task_id
        other.send(completed(task_id if of == "another's" else of))
        other.half_close()
        assert other.read() is None
        assert other.status() is grpc.StatusCode.OK
        assert engine.status_of(flow_id) == pb.FLOW_STATUS_RUNNING
        stream.send(completed(task_id))
        assert engine.closed(flow_id) == pb.FLOW_STATUS_COMPLETED
