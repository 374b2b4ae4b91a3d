"""The whole benchmark, part by part."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.floor import measure_floor
from tools.benchmarks.layout import Synchronous, Where, running
from tools.benchmarks.report import Report, count_places
from tools.benchmarks.turns import Client, measure, measure_growth, measure_parked
from tools.console import say

_COUNTED_TURNS = 10


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        turns: Turns of each session.
        sessions: Numbers of sessions that run side by side.
        long_turns: Turns of the long session; 0 leaves it out.
        parked: Sessions that wait; 0 leaves them out.
        layouts: Where engine and worker are, and the engine's setting.
    """

    turns: int
    sessions: tuple[int, ...]
    long_turns: int
    parked: int
    layouts: tuple[tuple[Where, Synchronous], ...]


QUICK = Plan(10, (1, 8), 150, 50, (("apart", "FULL"), ("inside", "FULL")))
FULL = Plan(
    50,
    (1, 32),
    1_000,
    1_000,
    (("apart", "FULL"), ("inside", "FULL"), ("apart", "NORMAL"), ("inside", "NORMAL")),
)


async def run_benchmark(plan: Plan, folder: Path) -> Report:
    """Measures all of a plan, in an empty folder."""
    report = Report(await measure_floor(folder))
    for where, synchronous in plan.layouts:
        place = _made(folder / f"{where}-{synchronous}")
        async with running(where, synchronous, place) as layout, Client(layout, place) as client:
            for sessions in plan.sessions:
                title = f"{where}, {synchronous}, {sessions} at a time"
                say(title)
                turns = max(2, plan.turns // (1 if sessions == 1 else 5))
                kinds = ((report.sessions, client.session), (report.bare, client.bare))
                for costs, drive in kinds:
                    name = f"{drive.__name__}-{sessions}"
                    costs[title] = await measure(layout, drive, name, sessions, turns)
    await _count(report, _made(folder / "count"))
    if plan.long_turns:
        await _measure_growth(report, plan.long_turns, _made(folder / "long"))
    if plan.parked:
        await _measure_parked(report, plan.parked, _made(folder / "parked"))
    return report


async def _count(report: Report, folder: Path) -> None:
    say("what a turn consists of")
    log = folder / "places"
    environment = {**os.environ, "DEX_EMBEDDED_FAULT_LOG": str(log)}
    async with (
        running("apart", "FULL", folder, environment) as layout,
        Client(layout, folder) as client,
    ):
        seen = 0
        async for _ in client.session_turns("counted", _COUNTED_TURNS + 1):
            seen = seen or len(_lines(log))
        # The last answer is on its way before what comes after it is counted.
        await asyncio.sleep(0.2)
        report.counts = count_places(_lines(log)[seen:], _COUNTED_TURNS)
    report.stored = _size(folder / "dex.sqlite3") / (_COUNTED_TURNS + 1)


def _size(file: Path) -> int:
    return file.stat().st_size


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines()


async def _measure_growth(report: Report, turns: int, folder: Path) -> None:
    say(f"one session of {turns} turns")
    async with running("apart", "FULL", folder) as layout, Client(layout, folder) as client:
        window = min(50, turns // 4)
        report.growth = await measure_growth(layout, client, turns, window)
        report.growth_turns = turns


async def _measure_parked(report: Report, sessions: int, folder: Path) -> None:
    say(f"{sessions} sessions that wait")
    async with running("apart", "FULL", folder) as layout, Client(layout, folder) as client:
        report.parked = await measure_parked(layout, client, sessions, seconds=5)
