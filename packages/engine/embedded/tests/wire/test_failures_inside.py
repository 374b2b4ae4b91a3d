"""What a caller and the log are told when the engine itself fails."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest
from dex.dexpb import dex_pb2 as pb
from engine_testing.world import open_world

from dex_embedded import open_engine

VALUE = "value-of-a-user-77aa"


async def test_an_unforeseen_failure_is_told_without_what_it_quotes_and_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError(VALUE)

    async with (
        open_engine(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as world,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(engine._engine.flows, "summary", fail)
            patched.setattr(engine._engine.workers, "stream_opened", fail)
            with pytest.raises(grpc.aio.AioRpcError, match="see its log") as unary:
                await world.stub.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id="some"))
            register = pb.PollWorkerTaskRegister(
                queue="Flow", app_worker_id="worker", flow_types=["Flow"]
            )
            poll = channel.stream_stream("/dex.WorkerTaskService/PollWorkerTask")
            stream = poll()
            await stream.write(pb.PollWorkerTaskRequest(register=register).SerializeToString())
            with pytest.raises(grpc.aio.AioRpcError, match="see its log") as streaming:
                await stream.read()
        for failure in (unary.value, streaming.value):
            assert failure.code() is grpc.StatusCode.INTERNAL
            assert VALUE not in repr(failure)
        with pytest.raises(grpc.aio.AioRpcError) as after:
            await world.stub.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id="some"))
        assert after.value.code() is grpc.StatusCode.NOT_FOUND
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == 2
    assert all("ValueError at test_failures_inside.py:" in line for line in said)
    assert VALUE not in caplog.text
