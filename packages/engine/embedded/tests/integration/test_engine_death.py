"""What happens when the engine is killed and comes back on the same port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from dex import (
    AsyncContext,
    Context,
    DexServiceError,
    FlowResult,
    FlowStatus,
    RetryPolicy,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    StreamMessage,
    Timer,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import EVENTS, INBOX, NOTE, PROBE, Alpha, Rescue, Script, Waiter
from engine_testing.process import EngineProcess, start_engine
from engine_testing.world import World, open_world, until

ONCE = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1)).on_execute_failure_proceed_to(
    Rescue
)
T = TypeVar("T")


class Engines:
    """The engines of one test, all on one data folder; gone when the test is over."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._started: list[EngineProcess] = []

    async def start(self, *, fault: str = "") -> EngineProcess:
        """Starts an engine, after the first one always on the same port."""
        port = self._started[0].port if self._started else 0
        engine = await start_engine(self._data_dir, port=port, env={"DEX_EMBEDDED_FAULT": fault})
        self._started.append(engine)
        return engine

    async def kill_all(self) -> None:
        for engine in self._started:
            await engine.kill()


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncGenerator[Engines]:
    opened = Engines(tmp_path / "data")
    yield opened
    await opened.kill_all()


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call while the engine is away."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except DexServiceError as error:
                if error.code.name not in ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"):
                    raise
                await asyncio.sleep(0.05)


async def result_of(world: World, script: Script) -> FlowResult:
    return await persist(lambda: world.result(script, seconds=20))


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


FAULTS = (
    "commit.before:Alpha",
    "commit.after:Alpha",
    "send.after:Alpha",
    "commit.after:change",
)
"""The places of which a run of the ordinary tests tries each; `make crash` tries the others too."""
MORE_FAULTS = (
    "commit.before:Start",
    "commit.after:Start",
    "handout.before:Alpha",
    "handout.after:Alpha",
    "send.before:Alpha",
    "commit.before:Waiter",
    "commit.after:Waiter",
    "commit.before:change",
    "reply.before:InvokeRPC",
)


@pytest.mark.parametrize(
    "fault", [*FAULTS, *(pytest.param(name, marks=pytest.mark.crash) for name in MORE_FAULTS)]
)
async def test_a_kill_at_any_place_loses_nothing_and_repeats_no_single_attempt(
    engines: Engines, tmp_path: Path, fault: str
) -> None:
    effects: list[str] = []

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(StepMovement.of(Alpha, given, options=ONCE))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        effects.append("charged")
        return go_to(Waiter, "charged")

    async def rescue(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, "unknown")

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.until(INBOX.for_one())

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        return graceful_complete(f"{given} {INBOX.results(context)[0]}")

    async def change(context: Context, given: str) -> RPCResult[str]:
        # The request id differs from try to try, so the flow itself tells a repetition.
        if not NOTE.get(context):
            NOTE.set(context, given)
            INBOX.publish(context, given)
        return RPCResult("")

    script = Script(
        execute={"Start": start, "Alpha": alpha, "Rescue": rescue, "Waiter": execute},
        wait_for={"Waiter": wait},
        rpc={"change": change},
    )
    options = {"request_id": "one request", "ignore_already_started": True}
    engine = await engines.start(fault=f"{fault}:1")
    async with open_world(engine.address, tmp_path) as world, world.worker():

        async def run() -> FlowResult:
            await persist(lambda: world.start(script, "in", **options))
            await persist(lambda: world.call(PROBE.change, script.flow_id, "m"))
            return await result_of(world, script)

        running = asyncio.create_task(run())
        await engine.wait_gone()
        await engines.start()
        result = await running
    output = result.single_output(str)
    assert output in ("charged m", "unknown m")
    assert len(effects) <= 1
    if fault in ("commit.before:Alpha", "send.after:Alpha"):
        assert output == "unknown m"
    if output == "charged m":
        assert effects == ["charged"]


async def test_busy_sessions_survive_a_kill_of_the_engine(engines: Engines, tmp_path: Path) -> None:
    effects: dict[str, int] = {}

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Alpha, "5")

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        await asyncio.sleep(0.02)
        left = int(given)
        if not left:
            return go_to_many(StepMovement.of(Waiter, "", options=ONCE))
        return go_to(Alpha, str(left - 1))

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.skip_immediately()

    async def charge(context: AsyncContext, given: str) -> StepDecision:
        effects[context.flow_id] = effects.get(context.flow_id, 0) + 1
        return graceful_complete("charged")

    scripts = [
        Script(
            execute={"Start": start, "Alpha": alpha, "Waiter": charge}, wait_for={"Waiter": wait}
        )
        for _ in range(32)
    ]
    engine = await engines.start()
    async with open_world(engine.address, tmp_path) as world, world.worker(max_tasks=32):
        await asyncio.gather(*(world.start(script) for script in scripts))
        await until(lambda: len(effects) >= 3)
        await engine.kill()
        await engines.start()
        results = await asyncio.gather(*(result_of(world, script) for script in scripts))
    for script, result in zip(scripts, results, strict=True):
        assert result.status is FlowStatus.COMPLETED
        count = effects.get(script.flow_id, 0)
        assert count <= 1
        if result.single_output(str) == "charged":
            assert count == 1
