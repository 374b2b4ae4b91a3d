"""The engine inside the test's own process, where its counters can be seen."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from dex import (
    AsyncContext,
    Context,
    RetryPolicy,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    go_to,
    go_to_many,
)
from engine_testing.probe import COUNT, INBOX, PROBE, Alpha, Execute, Script, Waiter
from engine_testing.world import World, open_world, until

from dex_embedded import NotLoopbackError, StoreInUseError, open_engine
from dex_embedded._open import OpenEngine
from dex_embedded._runtime import resident_runs

ONCE = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))


def looping() -> Script:
    """A flow that goes round once for each message: three Steps, one of them single-attempt."""

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, "")

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.any_of(Timer.by_duration(timedelta(hours=1)), INBOX.for_one())

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        COUNT.set(context, COUNT.get(context) + 1)
        return go_to_many(StepMovement.of(Alpha, "", options=ONCE))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, "")

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(str(COUNT.get(context)))

    steps: dict[str, Execute] = {"Start": start, "Waiter": execute, "Alpha": alpha}
    return Script(steps, {"Waiter": wait}, {"look": look})


async def go_round(world: World, script: Script, rounds: int) -> None:
    done = len(script.calls_of("Waiter", "wait_for"))
    for _ in range(rounds):
        await world.call(PROBE.send, script.flow_id, "m")
        done += 1
        await until(lambda wanted=done: len(script.calls_of("Waiter", "wait_for")) >= wanted)


@pytest.mark.parametrize("idle_streams", [1, 4])
async def test_no_stream_is_opened_per_task_in_a_steady_state(
    tmp_path: Path, idle_streams: int
) -> None:
    script = looping()
    async with (
        open_engine(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as world,
        world.worker(max_tasks=16, idle_streams=idle_streams),
    ):
        await world.start(script)
        await until(lambda: script.calls_of("Waiter", "wait_for"))
        await go_round(world, script, 10)
        dispatcher = engine._engine._dispatcher
        opened, offered = dispatcher.table.streams_opened, dispatcher.tasks_offered
        await go_round(world, script, 40)
        opened = dispatcher.table.streams_opened - opened
        offered = dispatcher.tasks_offered - offered
    assert offered >= 160
    assert opened <= offered / 20


async def test_an_idle_flow_leaves_memory_and_comes_back_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_runs, "IDLE_SECONDS", 0.0)
    scripts = [looping() for _ in range(5)]
    async with (
        open_engine(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as world,
        world.worker(),
    ):
        for script in scripts:
            await world.start(script)
            await until(lambda script=script: script.calls_of("Waiter", "wait_for"))
        await until(lambda: _evict_all(engine))
        for script in scripts:
            await world.call(PROBE.send, script.flow_id, "m")
            await until(lambda script=script: len(script.calls_of("Waiter", "wait_for")) == 2)
            assert await world.call(PROBE.look, script.flow_id, "") == "1"


async def test_a_timer_of_a_flow_that_left_memory_fires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_runs, "IDLE_SECONDS", 0.0)

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, "")

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=3)))

    script = Script({"Start": start}, {"Waiter": wait})
    async with (
        open_engine(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as world,
        world.worker(),
    ):
        await world.start(script, "x")
        await until(lambda: script.calls_of("Waiter", "wait_for"))
        await until(lambda: _evict_all(engine))
        await until(lambda: script.calls_of("Waiter"))


def _evict_all(engine: OpenEngine) -> bool:
    runs = engine._engine._runs
    runs.evict_idle()
    return len(runs) == 0


async def test_two_engines_never_share_a_data_file(tmp_path: Path) -> None:
    async with open_engine(tmp_path):
        with pytest.raises(StoreInUseError):
            async with open_engine(tmp_path):
                pass
    async with open_engine(tmp_path) as engine:
        assert engine.data_file.exists()


async def test_a_host_others_can_reach_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(NotLoopbackError):
        async with open_engine(tmp_path / "data", host="0.0.0.0"):
            pass
    assert not (tmp_path / "data").exists()


async def test_the_end_of_the_block_leaves_no_task_behind(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    script = looping()
    async with (
        open_engine(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as world,
        world.worker(),
    ):
        await world.start(script)
        await until(lambda: script.calls_of("Waiter", "wait_for"))
    await until(lambda: asyncio.all_tasks() == before)


async def test_a_block_that_raises_still_closes_the_engine(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with open_engine(tmp_path):
            raise KeyError("from inside")
    async with open_engine(tmp_path):
        pass
