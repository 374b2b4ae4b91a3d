"""What happens when the engine is killed and comes back on the same port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from dex import (
    AsyncContext,
    Context,
    FlowResult,
    FlowStatus,
    RetryPolicy,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
)
from engine_testing.engines import Engines, engines_on, persist, result_of
from engine_testing.probe import INBOX, NOTE, PROBE, Alpha, Rescue, Script, Waiter
from engine_testing.world import open_world, until

ONCE = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1)).on_execute_failure_proceed_to(
    Rescue
)


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncGenerator[Engines]:
    async with engines_on(tmp_path / "data") as opened:
        yield opened


FAULTS = (
    "commit.before:Alpha",
    "commit.after:Alpha",
    "send.after:Alpha",
    "commit.after:change",
)
"""What a kill at each of these leaves is known exactly. The kill run goes through every place."""


@pytest.mark.parametrize("fault", FAULTS)
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
