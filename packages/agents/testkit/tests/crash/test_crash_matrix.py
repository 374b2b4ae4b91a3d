"""Kills at every place a session passes through: engine, worker, or both.

A first run without a kill lists the places (`place:subject` and how often each is passed). Every
later run kills at one of them. `DEX_CRASH_KILLS` says how many; with fewer than there are, a sample
is taken that `DEX_CRASH_SEED` reproduces. `DEX_CRASH_CASE` runs one case by its name, which is the
one a failure prints.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from crash_session import Crashing, crashing_session, may_hide_refund, read_places

from dex_agents.testing import StartProcess, wait_until

VICTIMS = ("engine", "both", "worker")
LANES = 3
# Places that a session passes in the course of its two turns, and that no poll of the test adds to.
SUBJECTS = re.compile(
    r":(StartAgentSession|AwaitUserMessage|RunModel|AwaitToolApproval|CallTool"
    r"|CallSingleAttemptTool|ResumeTurn|resolve_interrupt|send_user_message|StartFlow)$"
)


@dataclass(frozen=True)
class Case:
    """Kill `victim` at the `count`th arrival at `place`."""

    victim: str
    place: str
    count: int

    def __str__(self) -> str:
        return f"{self.victim}@{self.place}:{self.count}"

    @classmethod
    def parse(cls, text: str) -> Case:
        victim, _, rest = text.partition("@")
        place, _, count = rest.rpartition(":")
        return cls(victim, place, int(count))


def cases_of(places: list[str]) -> list[Case]:
    arrivals = Counter(place for place in places if SUBJECTS.search(place))
    return [
        Case(victim, place, count)
        for place, total in sorted(arrivals.items())
        for count in range(1, total + 1)
        for victim in VICTIMS
    ]


def choose(cases: list[Case]) -> list[Case]:
    named = os.environ.get("DEX_CRASH_CASE")
    if named:
        return [Case.parse(named)]
    wanted = int(os.environ.get("DEX_CRASH_KILLS", "20"))
    shuffled = random.Random(os.environ.get("DEX_CRASH_SEED", "1")).sample(cases, len(cases))
    return [shuffled[number % len(shuffled)] for number in range(wanted)]


async def strike(crashing: Crashing, case: Case) -> bool:
    """Kill the victim when the place is reached, and bring it back; return whether it was."""
    if case.victim == "worker":
        seen = Counter[str]()

        def reached() -> bool:
            seen.clear()
            seen.update(read_places(crashing.fault_log))
            return seen[case.place] >= case.count

        await wait_until(f"arrival at {case.place}", reached, timeout=120, interval=0.002)
        await crashing.replace_worker()
        return True
    await crashing.stack.engine.wait_until_dead(120)
    if case.victim == "both":
        crashing.worker.kill()
    await crashing.restart_engine()
    if case.victim == "both":
        await crashing.stack.start_worker()
    return True


async def run_case(crashing: Crashing, case: Case, number: int) -> None:
    crashing.session_id = f"session-{number}"
    crashing.stack.engine.kill()
    crashing.fault_log.unlink(missing_ok=True)
    fault = "" if case.victim == "worker" else f"{case.place}:{case.count}"
    await crashing.stack.engine.restart({"DEX_EMBEDDED_FAULT": fault})
    driving = asyncio.create_task(crashing.drive())
    striking = asyncio.create_task(strike(crashing, case))
    try:
        await asyncio.wait({driving, striking}, return_when=asyncio.FIRST_COMPLETED)
        if not striking.done():
            # A place that is passed a varying number of times need not be reached again.
            await driving
            return
        await striking
        snapshot = await driving
    finally:
        striking.cancel()
        driving.cancel()
        await asyncio.gather(striking, driving, return_exceptions=True)
    may_be_unknown = case.victim == "worker" or may_hide_refund(case.place)
    await crashing.check(snapshot, may_be_unknown=may_be_unknown)


async def run_lane(folder: Path, start: StartProcess, cases: Iterator[tuple[int, Case]]) -> None:
    """Run cases one after another on one stack, taking them from what all lanes share."""
    async with crashing_session(folder, start) as crashing:
        for number, case in cases:
            try:
                await run_case(crashing, case, number)
            except BaseException as error:
                error.add_note(f"case {number}; run it alone with DEX_CRASH_CASE='{case}'")
                raise


async def list_cases(folder: Path, start: StartProcess) -> list[Case]:
    async with crashing_session(folder, start) as crashing:
        await crashing.check(await crashing.drive(), may_be_unknown=False)
        return cases_of(read_places(crashing.fault_log))


@pytest.mark.crash
async def test_a_session_survives_a_kill_at_any_place(tmp_path: Path, start: StartProcess) -> None:
    cases = await list_cases(tmp_path / "calm", start)
    assert {case.place.partition(":")[0] for case in cases} >= {
        "commit.before",
        "commit.after",
        "send.before",
        "send.after",
    }
    chosen = enumerate(choose(cases))

    # Most of a case is waiting for connections to come back, so several run at a time.
    async with asyncio.TaskGroup() as group:
        for lane in range(LANES):
            group.create_task(run_lane(tmp_path / f"lane-{lane}", start, chosen))
