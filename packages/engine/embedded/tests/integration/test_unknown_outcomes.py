"""How often a single-attempt Step is given up for lost although no worker ever started it.

The engine may not hand such a task out twice, so one that a worker drops unread takes the failure
route. That is safe and still wrong in the eyes of a user. It must not happen while all is quiet;
how often it happens in bursts of short tasks is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from dex import AsyncContext, StepDecision, StepMovement, go_to_many, graceful_complete
from engine_testing.orders import ONCE
from engine_testing.probe import Alpha, Beta, Script
from engine_testing.world import World, open_world

from dex_embedded import open_engine

STEPS = 4
"""Single-attempt Steps of one flow, and as many that may be repeated."""
ROUNDS = 6
FLOWS = 40


@dataclass(frozen=True)
class Outcomes:
    """What became of single-attempt tasks.

    Attributes:
        tasks: All of them.
        unknown: Those whose failure route ran.
        never_started: Those of the unknown that no worker had started.
    """

    tasks: int
    unknown: int
    never_started: int


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with (
        open_engine(tmp_path / "data", synchronous="NORMAL") as engine,
        open_world(engine.address, tmp_path) as opened,
    ):
        yield opened


def short_tasks() -> Script:
    """A flow of tasks that end at once, half of which may run once only."""

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(
            *(StepMovement.of(Alpha, str(number), options=ONCE) for number in range(STEPS)),
            *(StepMovement.of(Beta, str(number)) for number in range(STEPS)),
        )

    async def end(context: AsyncContext, given: str) -> StepDecision:
        return graceful_complete()

    return Script(execute={"Start": start, "Alpha": end, "Beta": end, "Rescue": end})


def outcomes_of(scripts: list[Script]) -> Outcomes:
    unknown = never_started = 0
    for script in scripts:
        started = {call.step for call in script.calls_of("Alpha")}
        gone = [call.from_id for call in script.calls_of("Rescue")]
        assert len(started | set(gone)) == STEPS
        assert len(script.calls_of("Alpha")) == len(started), "a single-attempt Step ran twice"
        unknown += len(gone)
        never_started += sum(step not in started for step in gone)
    return Outcomes(len(scripts) * STEPS, unknown, never_started)


async def test_no_single_attempt_step_is_given_up_while_all_is_quiet(world: World) -> None:
    scripts = [short_tasks() for _ in range(12)]
    async with world.worker():
        for script in scripts:
            await world.start(script)
            await world.result(script)
    assert outcomes_of(scripts) == Outcomes(12 * STEPS, 0, 0)


@pytest.mark.crash
async def test_bursts_of_short_tasks_give_up_hardly_any_single_attempt_step(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts: list[Script] = []
    async with world.worker(max_tasks=32):
        for _ in range(ROUNDS):
            burst = [short_tasks() for _ in range(FLOWS)]
            await asyncio.gather(*(world.start(script) for script in burst))
            for script in burst:
                await world.result(script, seconds=120)
            scripts.extend(burst)
    seen = outcomes_of(scripts)
    with capsys.disabled():
        print(
            f"\nbursts of short tasks: {seen.tasks} single-attempt tasks, {seen.unknown} unknown,"
            f" {seen.never_started} of them never started"
            f" ({seen.never_started / seen.tasks:.3%})"
        )
    assert seen.never_started <= seen.tasks // 100
