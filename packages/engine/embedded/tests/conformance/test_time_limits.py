"""How long an attempt may take or be silent, and what of it counts afterwards."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest
from dex import (
    AsyncContext,
    FlowErrorType,
    RetryPolicy,
    StepDecision,
    StepOptions,
    dead_end,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.one_step import ONCE, QUICK, SECOND, first
from engine_testing.probe import EVENTS, Script
from engine_testing.raw_worker import Frame, raw_stream, start_raw_flow
from engine_testing.world import World

behaviour = pytest.mark.behaviour


@behaviour("steps.attempt-timeout")
async def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again(world: World) -> None:
    cancelled: list[int] = []

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        if context.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(context.attempt)
                return graceful_complete("late")
        return graceful_complete(f"attempt {context.attempt}")

    options = StepOptions(execute_method_timeout=SECOND, execute_retry=QUICK)
    script = first(options)
    script.execute["Alpha"] = alpha
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "attempt 2"
    assert cancelled == [1]


@behaviour("steps.timeout-text")
async def test_a_flow_that_fails_by_timeout_says_so(world: World) -> None:
    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        await asyncio.sleep(60)
        return dead_end()

    script = first(StepOptions(execute_method_timeout=SECOND, execute_retry=ONCE))
    script.execute["Alpha"] = alpha
    await world.start(script)
    result = await world.result(script)
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "timeout" in (result.error_message or "").lower()


@behaviour("steps.heartbeat-timeout")
async def test_silence_fails_an_attempt_and_heartbeats_or_stream_writes_do_not(
    world: World, heartbeat_timeout: timedelta
) -> None:
    beat = heartbeat_timeout.total_seconds() / 4

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        if given == "silent" and context.attempt == 1:
            await asyncio.sleep(600)
        for _ in range(8):
            if given == "beats":
                await context.heartbeat(1)
            elif given == "writes":
                EVENTS.write(context, "alive")
            await asyncio.sleep(beat if given != "silent" else 0)
        return graceful_complete(f"{given} {context.attempt}")

    scripts: list[Script] = []
    for given in ("silent", "beats", "writes"):
        options = StepOptions(heartbeat_timeout=heartbeat_timeout, execute_retry=QUICK)
        script = first(options, given=given)
        script.execute["Alpha"] = alpha
        await world.start(script)
        scripts.append(script)
    outputs = [(await world.result(script)).single_output(str) for script in scripts]
    assert outputs == ["silent 2", "beats 1", "writes 1"]


@behaviour("steps.pongs-are-no-heartbeats")
async def test_pongs_of_a_worker_do_not_keep_a_silent_attempt_alive(
    world: World, heartbeat_timeout: timedelta
) -> None:
    flow_type = f"Silent {uuid.uuid4().hex[:8]}"
    options = pb.StepOptions(heartbeat_timeout_seconds=int(heartbeat_timeout.total_seconds()))
    async with raw_stream(world.address, flow_type) as stream:
        await start_raw_flow(world.stub, flow_type, options=options)
        task = await stream.read_task()

        async def keep_ponging() -> None:
            while True:
                await stream.send(Frame(pong=pb.PollWorkerTaskPong()))
                await asyncio.sleep(heartbeat_timeout.total_seconds() / 10)

        ponging = asyncio.create_task(keep_ponging())
        async with asyncio.timeout(60):
            frame = await stream.read()
        ponging.cancel()
        assert frame is not None
        assert frame.cancel_task.task_id == task.task_id


@behaviour("steps.late-result")
async def test_a_result_that_comes_after_its_cancellation_is_ignored(world: World) -> None:
    flow_type = f"Late {uuid.uuid4().hex[:8]}"
    options = pb.StepOptions(execute_timeout_seconds=1)
    async with raw_stream(world.address, flow_type) as stream:
        flow_id = await start_raw_flow(world.stub, flow_type, options=options)
        first = await stream.read_task()
        async with asyncio.timeout(60):
            frame = await stream.read()
        assert frame is not None
        assert frame.cancel_task.task_id == first.task_id
        await stream.execute_done(first.task_id, output=pb.Value(string_value="late"))
        async with asyncio.timeout(60):
            second = await stream.read_task()
        assert second.execute.context.attempt == 2
        await stream.execute_done(second.task_id, output=pb.Value(string_value="in time"))
        result = await world.stub.WaitForFlow(
            pb.WaitForFlowRequest(flow_id=flow_id, needs_results=True, wait_time_seconds=20)
        )
    outputs = [entry.completed_step_output.string_value for entry in result.results]
    assert outputs == ["in time"]


@behaviour("steps.heartbeat-value")
async def test_the_next_attempt_gets_the_last_heartbeat_value(world: World) -> None:
    seen: list[tuple[bool, object]] = []

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        value = (
            context.get_last_heartbeat_value(int) if context.has_last_heartbeat_value() else None
        )
        seen.append((context.has_last_heartbeat_value(), value))
        if context.attempt == 1:
            await context.heartbeat(41)
            await context.heartbeat(42)
            EVENTS.write(context, "keeps it")
        elif context.attempt == 2:
            await context.heartbeat()
        elif context.attempt == 3:
            await context.heartbeat(None)
        else:
            return graceful_complete()
        raise RuntimeError("again")

    script = first(StepOptions(execute_retry=RetryPolicy(SECOND, 1.0, maximum_attempts=5)))
    script.execute["Alpha"] = alpha
    await world.start(script)
    await world.result(script)
    assert seen == [(False, None), (True, 42), (False, None), (True, None)]
