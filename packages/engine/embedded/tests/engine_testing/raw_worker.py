"""One worker stream, frame by frame, for what a worker of the SDK never does."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

Frame = pb.PollWorkerTaskRequest
GRACEFUL = pb.CLOSE_DECISION_TYPE_GRACEFUL_COMPLETE


class RawStream:
    """A registered worker stream."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._writing = asyncio.Lock()

    async def send(self, frame: pb.PollWorkerTaskRequest) -> None:
        # A pong may be due while a test sends; gRPC takes one message at a time.
        async with self._writing:
            await self._call.write(frame)

    async def read(self) -> pb.PollWorkerTaskResponse | None:
        """The next frame, pings answered; None when the engine has ended the stream."""
        while True:
            frame = await self._call.read()
            if frame is grpc.aio.EOF:
                return None
            if not frame.HasField("ping"):
                return frame
            await self.send(Frame(pong=pb.PollWorkerTaskPong()))

    async def read_task(self) -> pb.PollWorkerTask:
        """The next task; nothing else may come before it but a cancellation of the last."""
        while True:
            frame = await self.read()
            assert frame is not None, "the engine ended the stream"
            if frame.HasField("task"):
                return frame.task
            assert frame.HasField("cancel_task"), frame

    async def execute_done(
        self,
        task_id: str,
        result: pb.InvokeExecuteMethodResponse | None = None,
        output: pb.Value | None = None,
    ) -> None:
        """Answers a task with graceful completion and these effects."""
        answer = pb.InvokeExecuteMethodResponse()
        if result is not None:
            answer.CopyFrom(result)
        close = answer.step_decision.close_decision
        close.close_decision_type = GRACEFUL
        if output is not None:
            close.close_input.CopyFrom(output)
        await self.execute_output(task_id, pb.InvokeExecuteMethodOutput(result=answer))

    async def execute_output(self, task_id: str, output: pb.InvokeExecuteMethodOutput) -> None:
        await self.send(Frame(task_frame=pb.PollWorkerTaskFrame(task_id=task_id, execute=output)))

    async def rpc_done(self, task_id: str, result: pb.InvokeWorkerRPCResponse) -> None:
        await self.send(Frame(task_frame=pb.PollWorkerTaskFrame(task_id=task_id, rpc=result)))


@asynccontextmanager
async def raw_stream(address: str, flow_type: str) -> AsyncGenerator[RawStream]:
    """A stream for the tasks of a flow type, cancelled when the block ends."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = dex_pb2_grpc.WorkerTaskServiceStub(channel).PollWorkerTask()
        stream = RawStream(call)
        register = pb.PollWorkerTaskRegister(
            queue=flow_type,
            app_worker_id=f"raw-{uuid.uuid4().hex[:12]}",
            flow_types=[flow_type],
            sdk_name="python",
        )
        await stream.send(Frame(register=register))
        first = await stream.read()
        assert first is not None
        assert first.HasField("registered")
        try:
            yield stream
        finally:
            call.cancel()


async def start_raw_flow(
    stub: Any,
    flow_type: str,
    step_input: pb.Value | None = None,
    options: pb.StepOptions | None = None,
) -> str:
    """Starts a flow of that type whose first Step is `Start`; returns its id."""
    flow_id = f"raw-{uuid.uuid4().hex[:12]}"
    step_options = pb.StepOptions(skip_wait_for=True)
    if options is not None:
        step_options.MergeFrom(options)
    request = pb.StartFlowRequest(
        flow_id=flow_id,
        flow_type=flow_type,
        start_step_type="Start",
        step_input=step_input,
        step_options=step_options,
        request_id=flow_id,
    )
    await stub.StartFlow(request)
    return flow_id
