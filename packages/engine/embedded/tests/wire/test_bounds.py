"""What the engine holds for others is bounded, and what is refused can be repeated."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex import (
    AsyncContext,
    Context,
    DexServiceError,
    FlowNotFoundError,
    FlowStatus,
    RPCResult,
    StepDecision,
    StepMovement,
    Wait,
    dead_end,
    go_to,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from engine_testing.probe import EVENTS, INBOX, NOTE, PROBE, Alpha, Script, Waiter
from engine_testing.raw_worker import raw_stream, start_raw_flow
from engine_testing.slow_reader import slow_reader
from engine_testing.world import World, open_world, until

from dex_embedded import Bounds, OpenEngine, open_engine
from dex_embedded._runtime.bounds import Admission

BOUNDS = Bounds()


@asynccontextmanager
async def bounded(folder: Path, **bounds: int) -> AsyncGenerator[tuple[World, Admission]]:
    """An engine with these bounds, a client of it, and its counts."""
    async with (
        open_engine(folder / "data", drain_seconds=0.2, bounds=replace(BOUNDS, **bounds)) as engine,
        open_world(engine.address, folder) as world,
    ):
        yield world, admission_of(engine)


def admission_of(engine: OpenEngine) -> Admission:
    return engine._engine.admission  # pyright: ignore[reportPrivateUsage]  # no caller needs it


def check_overloaded(error: DexServiceError | grpc.aio.AioRpcError) -> None:
    code = error.code if isinstance(error, DexServiceError) else error.code()
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "overloaded" in str(error)


def parked() -> Script:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, given)

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.until(INBOX.for_n(99))

    return Script(execute={"Start": start}, wait_for={"Waiter": wait})


async def test_more_tasks_than_may_wait_for_a_worker_are_refused_and_start_nothing(
    tmp_path: Path,
) -> None:
    async with bounded(tmp_path, queued_tasks=3) as (world, _):
        scripts = [Script() for _ in range(4)]
        for script in scripts[:3]:
            await world.start(script)
        with pytest.raises(DexServiceError) as refusal:
            await world.start(scripts[3])
        check_overloaded(refusal.value)
        with pytest.raises(FlowNotFoundError):
            await world.client.describe_flow(scripts[3].flow_id)
        async with world.worker():
            for script in scripts[:3]:
                assert (await world.result(script)).status is FlowStatus.COMPLETED
            # The caller comes back, and is served.
            await world.start(scripts[3])
            assert (await world.result(scripts[3])).status is FlowStatus.COMPLETED


async def test_the_tasks_of_all_flow_types_together_are_bounded(tmp_path: Path) -> None:
    async with bounded(tmp_path, all_queued_tasks=3) as (world, _):
        for _ in range(3):
            await start_raw_flow(world.stub, f"type {uuid.uuid4().hex}")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await start_raw_flow(world.stub, "one type too many")
        check_overloaded(refusal.value)


async def test_an_rpc_that_leads_to_more_tasks_is_refused_whole_and_a_query_is_served(
    tmp_path: Path,
) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        NOTE.set(context, "changed")
        return RPCResult("", next_steps=(StepMovement.of(Alpha, "more"),))

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(str(NOTE.get(context)))

    script = parked()
    script.rpc.update(change=change, look=look)
    async with bounded(tmp_path, all_queued_tasks=3) as (world, _), world.worker():
        await world.start(script)
        await until(lambda: script.calls_of("Waiter", "wait_for"))
        for _ in range(3):
            await start_raw_flow(world.stub, "A type without workers")
        with pytest.raises(DexServiceError) as refusal:
            await world.call(PROBE.change, script.flow_id, "")
        check_overloaded(refusal.value)
        assert await world.call(PROBE.look, script.flow_id, "") == "None"
    assert not script.calls_of("Alpha")


async def test_long_polls_beyond_the_bound_are_refused_and_other_calls_are_not(
    tmp_path: Path,
) -> None:
    async with bounded(tmp_path, long_polls=2) as (world, admission):
        script = Script()
        await world.start(script)
        polls = [asyncio.create_task(world.result(script)) for _ in range(2)]
        await until(lambda: admission.long_polls == 2)
        with pytest.raises(DexServiceError) as refusal:
            await world.client.read_stream("flow", EVENTS, timeout=timedelta(seconds=5))
        check_overloaded(refusal.value)
        assert (await world.client.describe_flow(script.flow_id)).status is FlowStatus.RUNNING
        await world.client.stop_flow(script.flow_id)
        await asyncio.gather(*polls)
        await until(lambda: admission.long_polls == 0)


async def test_calls_beyond_the_bound_are_refused_until_others_have_ended(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def look(context: Context, given: str) -> RPCResult[str]:
        await release.wait()
        return RPCResult("seen")

    script = parked()
    script.rpc["look"] = look
    async with bounded(tmp_path, pending_calls=3) as (world, admission), world.worker():
        await world.start(script)
        calls = [asyncio.create_task(world.call(PROBE.look, script.flow_id, "")) for _ in range(3)]
        await until(lambda: admission.pending_calls == 3)
        with pytest.raises(DexServiceError) as refusal:
            await world.client.describe_flow(script.flow_id)
        check_overloaded(refusal.value)
        release.set()
        assert await asyncio.gather(*calls) == ["seen"] * 3
        await until(lambda: admission.pending_calls == 0)
        assert (await world.client.describe_flow(script.flow_id)).status is FlowStatus.RUNNING


async def test_one_flow_takes_no_more_rpcs_at_a_time_than_its_share(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def look(context: Context, given: str) -> RPCResult[str]:
        if given:
            await release.wait()
        return RPCResult("seen")

    busy, calm = parked(), parked()
    busy.rpc["look"] = calm.rpc["look"] = look
    async with bounded(tmp_path, calls_per_flow=2) as (world, admission), world.worker():
        await world.start(busy)
        await world.start(calm)
        calls = [
            asyncio.create_task(world.call(PROBE.look, busy.flow_id, "wait")) for _ in range(2)
        ]
        await until(lambda: admission.pending_calls == 2)
        with pytest.raises(DexServiceError) as refusal:
            await world.call(PROBE.look, busy.flow_id, "")
        check_overloaded(refusal.value)
        assert await world.call(PROBE.look, calm.flow_id, "") == "seen"
        release.set()
        await asyncio.gather(*calls)
        assert await world.call(PROBE.look, busy.flow_id, "") == "seen"


async def test_worker_streams_beyond_the_bound_are_ended_in_a_passing_way(tmp_path: Path) -> None:
    async with bounded(tmp_path, worker_streams=2) as (world, admission):
        async with (
            raw_stream(world.address, "First"),
            raw_stream(world.address, "Second"),
            grpc.aio.insecure_channel(world.address) as channel,
        ):
            call: Any = dex_pb2_grpc.WorkerTaskServiceStub(channel).PollWorkerTask()
            # Not one of the statuses that a worker takes for lasting.
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await until(lambda: admission.worker_streams == 0)
        async with raw_stream(world.address, "Third"):
            pass


async def test_replies_that_nobody_takes_fill_no_more_memory_than_they_may(tmp_path: Path) -> None:
    bound = 2_000_000

    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "x" * 300_000)
        return dead_end()

    script = Script(execute={"Start": start})
    request = pb.GetAttributesRequest(flow_id=script.flow_id, keys=["Note"])
    async with bounded(tmp_path, call_bytes=bound) as (world, admission), world.worker():
        await world.start(script)

        async def written() -> bool:
            return bool((await world.stub.GetAttributes(request)).attributes)

        await until(written)
        async with slow_reader(world.address) as client:
            for _ in range(50):
                client.ask("GetAttributes", request)
            await until(lambda: admission.call_bytes > bound * 3 // 4)

            async def refused() -> bool:
                try:
                    await world.stub.GetAttributes(request)
                except grpc.aio.AioRpcError as error:
                    check_overloaded(error)
                    return True
                return False

            await until(refused)
            assert admission.call_bytes <= bound
            # A call with a small answer is served all the while.
            await world.client.describe_flow(script.flow_id)
        await until(lambda: admission.call_bytes == 0)
        assert (await world.stub.GetAttributes(request)).attributes


async def test_a_handler_that_writes_faster_than_the_disk_is_slowed_down_and_loses_nothing(
    tmp_path: Path,
) -> None:
    flow_type = f"Writer {uuid.uuid4().hex[:8]}"
    count = 300
    async with (
        bounded(tmp_path, unsaved_bytes=2_000) as (world, _),
        raw_stream(world.address, flow_type) as stream,
    ):
        flow_id = await start_raw_flow(world.stub, flow_type)
        task = await stream.read_task()
        for number in range(count):
            write = pb.StepStreamWrite(
                stream_name="Events",
                stream_capacity_bytes=10_000_000,
                value=pb.Value(string_value=str(number)),
            )
            output = pb.InvokeExecuteMethodOutput(stream_write=write)
            await stream.execute_output(task.task_id, output)
        await stream.execute_done(task.task_id)
        await world.stub.WaitForFlow(pb.WaitForFlowRequest(flow_id=flow_id, wait_time_seconds=20))
        page = await world.stub.ListStreamMessages(
            pb.ListStreamMessagesRequest(
                flow_id=flow_id, flow_type=flow_type, stream_name="Events", page_size=count
            )
        )
    texts = [message.value.string_value for message in page.messages]
    assert texts == [str(number) for number in reversed(range(count))]


async def test_a_program_that_reads_the_data_file_for_long_does_not_let_its_log_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dex_embedded._runtime.engine._SWEEP_EVERY", 0.02)
    monkeypatch.setattr("dex_embedded._store.sqlite.CHECKPOINT_STATEMENTS", 20)
    monkeypatch.setattr("dex_embedded._store.sqlite.LOG_LIMIT_PAGES", 10)
    bound = 1_000_000
    log = tmp_path / "data" / "dex.sqlite3-wal"
    async with bounded(tmp_path, log_bytes=bound) as (world, admission):

        async def write(times: int = 1) -> None:
            for _ in range(times):
                await world.client.write_stream("flow", EVENTS, "test", "x" * 20_000)

        await write()
        with closing(sqlite3.connect(tmp_path / "data" / "dex.sqlite3")) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM run").fetchone()
            with pytest.raises(DexServiceError) as refusal:
                await write(times=2_000)
            check_overloaded(refusal.value)
            assert admission.log_is_full
            size = log.stat().st_size
            assert bound < size < 20 * bound
            # Reading goes on, and the log does not grow.
            await world.client.health_check()
            assert (await world.client.read_stream("flow", EVENTS)).value
            with pytest.raises(DexServiceError):
                await write()
            assert log.stat().st_size == size
        await until(lambda: not admission.log_is_full)
        assert log.stat().st_size < bound
        await write()


async def test_a_message_over_the_bound_fails_its_call_and_the_engine_goes_on(
    tmp_path: Path,
) -> None:
    async with bounded(tmp_path, message_bytes=100_000) as (world, _), world.worker():
        script = Script()
        with pytest.raises(DexServiceError):
            await world.start(script, "x" * 200_000)
        await world.start(script, "fine")
        assert (await world.result(script)).single_output(str) == "fine"


@pytest.mark.parametrize("name", [field.name for field in fields(Bounds)])
def test_a_bound_that_lets_nothing_in_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        replace(BOUNDS, **{name: 0})
