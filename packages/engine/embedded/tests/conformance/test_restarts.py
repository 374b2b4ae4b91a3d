"""What a kill of the engine or of a worker leaves in place.

The engine tests start and kill engines of their own, so they do not run against a foreign address.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from dex import (
    AsyncContext,
    FlowStatus,
    StepDecision,
    StreamMessage,
    Timer,
    Wait,
    go_to,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.engines import Engines, engines_on, persist, result_of
from engine_testing.probe import EVENTS, INBOX, NOTE, PROBE, Script, Waiter
from engine_testing.till import TILL, reached, worker_process
from engine_testing.world import World, open_world, until

behaviour = pytest.mark.behaviour


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncGenerator[Engines]:
    if os.environ.get("DEX_CONFORMANCE_ADDRESS"):
        pytest.skip("this engine cannot be killed and started from here")
    async with engines_on(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
async def till(engine_address: str, tmp_path: Path) -> AsyncGenerator[World]:
    async with open_world(engine_address, tmp_path, [TILL]) as opened:
        yield opened


async def kill_the_worker_in(till: World, folder: Path, step: str) -> str:
    """Starts a flow and kills its worker in that Step; returns the flow's id."""
    flow_id = f"till-{uuid.uuid4().hex[:12]}"
    async with worker_process(till.address, folder) as worker:
        await till.client.start_flow(TILL, flow_id, str(folder))
        await until(lambda: reached(folder, step, worker.pid))
        await worker.kill()
    return flow_id


@behaviour("restart.waits")
async def test_a_waiting_flow_goes_on_where_it_was(engines: Engines, tmp_path: Path) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "kept")
        return go_to(Waiter, "")

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.any_of(Timer.by_duration(timedelta(hours=1)), INBOX.for_n(2))

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        return graceful_complete(f"{NOTE.get(context)} {','.join(INBOX.results(context))}")

    script = Script(execute={"Start": start, "Waiter": execute}, wait_for={"Waiter": wait})
    engine = await engines.start()
    async with open_world(engine.address, tmp_path) as world, world.worker():
        await world.start(script)
        await world.call(PROBE.send, script.flow_id, "a")
        await until(lambda: script.calls_of("Waiter", "wait_for"))
        await engine.kill()
        await engines.start()
        await persist(lambda: world.call(PROBE.send, script.flow_id, "b"))
        result = await result_of(world, script)
    assert result.single_output(str) == "kept a,b"
    assert len(script.calls_of("Start")) == 1


@behaviour("restart.timers")
async def test_a_timer_that_came_due_while_the_engine_was_away_fires(
    engines: Engines, tmp_path: Path
) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, "")

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=2)))

    script = Script(execute={"Start": start}, wait_for={"Waiter": wait})
    engine = await engines.start()
    async with open_world(engine.address, tmp_path) as world, world.worker():
        await world.start(script)
        await until(lambda: script.calls_of("Waiter", "wait_for"))

        async def waits() -> bool:
            state = await world.stub.GetFlowState(pb.GetFlowStateRequest(flow_id=script.flow_id))
            return bool(state.active_step_executions[0].timers)

        await until(waits)
        await engine.kill()
        await asyncio.sleep(2)
        await engines.start()
        result = await result_of(world, script)
    assert result.status is FlowStatus.COMPLETED


@behaviour("restart.attempts")
async def test_a_method_that_was_running_gets_its_next_attempt_with_the_same_facts(
    engines: Engines, tmp_path: Path
) -> None:
    values: list[object] = []
    running = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        present = context.has_last_heartbeat_value()
        values.append(context.get_last_heartbeat_value(int) if present else None)
        if context.attempt == 1:
            await context.heartbeat(17)
            EVENTS.write(context, "beat")
            running.set()
            await asyncio.sleep(600)
        return graceful_complete(given)

    script = Script(execute={"Start": start})
    engine = await engines.start()
    async with open_world(engine.address, tmp_path) as world, world.worker():
        await world.start(script, "in")
        await running.wait()
        await world.client.read_stream(script.flow_id, EVENTS, timeout=timedelta(seconds=20))
        await engine.kill()
        await engines.start()
        result = await result_of(world, script)
    assert result.single_output(str) == "in"
    first, second = script.calls_of("Start")
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.first_attempt_at == second.first_attempt_at
    assert values == [None, 17]


@behaviour("restart.streams")
async def test_a_stream_reader_resumes_after_a_restart(engines: Engines, tmp_path: Path) -> None:
    engine = await engines.start()
    async with open_world(engine.address, tmp_path) as world:
        for text in ("a", "b"):
            await world.client.write_stream("flow", EVENTS, "test", text)
        first = await world.client.read_stream("flow", EVENTS)
        await engine.kill()
        await engines.start()

        async def read(token: str) -> StreamMessage[str]:
            return await persist(lambda: world.client.read_stream("flow", EVENTS, token))

        second = await read(first.resume_token)
        await world.client.write_stream("flow", EVENTS, "test", "c")
        third = await read(second.resume_token)
    assert [message.value for message in (first, second, third)] == ["a", "b", "c"]


@behaviour("dispatch.killed-worker")
async def test_a_killed_worker_costs_one_attempt_of_a_step_that_may_be_repeated(
    till: World, tmp_path: Path
) -> None:
    (tmp_path / "Charge.open").touch()
    flow_id = await kill_the_worker_in(till, tmp_path, "Fetch")
    async with worker_process(till.address, tmp_path) as second:
        await until(lambda: reached(tmp_path, "Fetch", second.pid))
        (tmp_path / "Fetch.open").touch()
        result = await till.client.wait_for_flow(flow_id, timeout=timedelta(seconds=30))
    assert result.single_output(str) == "charged"
    assert (tmp_path / "charges").read_text() == f"{flow_id}\n"
    reply = await till.stub.GetHistoryEvents(pb.GetHistoryEventsRequest(flow_id=flow_id))
    fetch = reply.events[1].step_execute_completed.context
    assert (fetch.step_type, fetch.final_attempt) == ("Fetch", 2)
    reason = fetch.last_failure_info.details.dispatch_task_error_reason
    assert reason == pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED


@behaviour("dispatch.killed-worker-once")
async def test_a_step_that_must_not_be_repeated_takes_its_failure_route_and_ran_once(
    till: World, tmp_path: Path
) -> None:
    (tmp_path / "Fetch.open").touch()
    flow_id = await kill_the_worker_in(till, tmp_path, "Charge")
    (tmp_path / "Charge.open").touch()
    async with worker_process(till.address, tmp_path):
        result = await till.client.wait_for_flow(flow_id, timeout=timedelta(seconds=30))
    assert result.status is FlowStatus.COMPLETED
    assert result.single_output(str) == "outcome unknown"
    assert (tmp_path / "charges").read_text() == f"{flow_id}\n"
