"""Kills at every place of an engine under load, and a model that says what must hold.

Orders run all the time, several at once, while one engine after the other is killed at a place that
was chosen for it. `DEX_CRASH_KILLS` says how many kills; `DEX_CRASH_SEED` reproduces the choice of
places and arrivals; `DEX_CRASH_REPORT` names a file for the report as JSON.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from engine_testing.engines import Engines, engines_on
from engine_testing.kill_report import KillReport
from engine_testing.orders import Order
from engine_testing.world import World, open_world

from dex_embedded._runtime.faults import PLACES
from dex_embedded._store.check import check_file

KILLS = int(os.environ.get("DEX_CRASH_KILLS", "20"))
LANES = 3 if KILLS >= 60 else 1
ORDERS_AT_ONCE = 8
REACHED_WITHIN = 120.0
LATEST_ARRIVAL = {"control": 8, "stream": 10}
"""Places that are passed less often get a smaller number than the others' 60."""

Fault = tuple[str, int]


def choose_faults() -> list[Fault]:
    """As many kills as asked for, spread evenly over the places.

    Every fourth may strike while the engine is still taking up what the one before it left.
    """
    chance = random.Random(os.environ.get("DEX_CRASH_SEED", "1"))
    faults: list[Fault] = []
    for number in range(max(KILLS, len(PLACES))):
        place = PLACES[number % len(PLACES)]
        latest = LATEST_ARRIVAL.get(place.partition(".")[0], 60)
        is_early = chance.random() < 0.25
        faults.append(
            (place, chance.randint(*((1, latest // 4) if is_early else (latest // 4, latest))))
        )
    chance.shuffle(faults)
    return faults


@dataclass
class Lane:
    """One data file, the engines that follow one another on it, and the orders they serve."""

    folder: Path
    report: KillReport
    orders: list[Order] = field(default_factory=list[Order])

    async def run(self, faults: Iterator[Fault]) -> None:
        """Takes faults from what all lanes share until there are no more."""
        self.folder.mkdir()
        async with engines_on(self.folder) as engines:
            first = await engines.start()
            async with (
                open_world(first.address, self.folder) as world,
                world.worker(max_tasks=32),
                asyncio.TaskGroup() as group,
            ):
                stopping = asyncio.Event()
                for _ in range(ORDERS_AT_ONCE):
                    group.create_task(self._keep_ordering(world, stopping))
                await first.kill()
                for fault in faults:
                    await self._one_life(engines, fault)
                await engines.start()
                stopping.set()

    async def _one_life(self, engines: Engines, fault: Fault) -> None:
        place, count = fault
        log = self.folder / "faults"
        log.unlink(missing_ok=True)
        wanted = f"{place}:{count}"
        engine = await engines.start(fault=wanted, fault_log=log)
        try:
            code = await engine.wait_gone(REACHED_WITHIN)
        except TimeoutError:
            self.report.not_reached[wanted] += 1
            await engine.kill()
        else:
            assert code == -signal.SIGKILL
        self.report.read(log)

    async def _keep_ordering(self, world: World, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            order = Order(world)
            self.orders.append(order)
            try:
                await order.drive()
                await order.check()
            except Exception as error:
                error.add_note(f"order {order.script.flow_id}; its calls: {order.script.calls}")
                raise


@pytest.mark.crash
@pytest.mark.timeout(3600)
async def test_kills_at_every_place_lose_double_and_reorder_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = KillReport()
    faults = choose_faults()
    shared = iter(faults)
    lanes = [Lane(tmp_path / f"lane-{number}", report) for number in range(LANES)]
    began = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(lane.run(shared))
    finally:
        orders = [order for lane in lanes for order in lane.orders]
        unknown = sum(order.was_unknown for order in orders)
        never_ran = sum(order.was_unknown and not order.charges for order in orders)
        facts: dict[str, object] = {
            "seconds": round(time.monotonic() - began),
            "orders": len(orders),
            "payments_unknown": unknown,
            "payments_unknown_that_never_ran": never_ran,
        }
        with capsys.disabled():
            print(f"\n{report.kills} kills of a busy engine: {facts}\n{report.table()}")
            if report.not_reached:
                print(f"not reached in time: {dict(report.not_reached)}")
        if wanted := os.environ.get("DEX_CRASH_REPORT"):
            report.write_json(Path(wanted), **facts)
    for lane in lanes:
        found = check_file(lane.folder / "dex.sqlite3")
        assert not found.problems
    assert report.kills == len(faults) - report.not_reached.total()
    assert report.not_reached.total() <= len(faults) // 20
    with_work = {
        name: sum(tasks > 0 for tasks in place.kills) for name, place in report.places.items()
    }
    assert sum(with_work.values()) >= report.kills // 2
    if KILLS >= 100:
        idle = [name for name, kills in with_work.items() if not kills]
        assert not idle, f"no kill with work in flight at {idle}"
