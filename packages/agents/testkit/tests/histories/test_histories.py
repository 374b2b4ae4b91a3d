"""Generated histories of scripted sessions, played with crashes against the invariants."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from history_messages import turns
from planted_bugs import PlantedBug, load_bugs

from dex_agents_testkit.histories import (
    INVARIANTS,
    HistoryFailedError,
    InvariantBrokenError,
    SessionMachine,
)

FLOW = f"{Path(__file__).resolve().parent.parent / 'history_flow.py'}:build_flow"
SEED = int(os.environ.get("DEX_CRASH_SEED", "1"))
KILLS = int(os.environ.get("DEX_CRASH_KILLS", "200"))


def histories_for(kills: int) -> int:
    """300 where `make crash` asks for all of its kills, and fewer for fewer."""
    return min(300, kills * 3 // 2)


def bugs_for(kills: int, seed: int) -> list[PlantedBug]:
    """All of them where `make crash` asks for all of its kills, and two for fewer."""
    bugs = load_bugs()
    return bugs if kills >= 200 else random.Random(seed).sample(bugs, 2)


@pytest.mark.parametrize("bug", load_bugs(), ids=lambda bug: bug.name)
def test_a_planted_bug_fits_the_core_and_stays_python(bug: PlantedBug) -> None:
    compile(bug.source(), bug.file, "exec")
    assert bug.invariant in {invariant.invariant_id for invariant in INVARIANTS}


@pytest.mark.timeout(600)
async def test_a_few_generated_histories_break_no_invariant(tmp_path: Path) -> None:
    report = await SessionMachine(FLOW, turns()).run(tmp_path, histories=6)
    print(report.render())
    report.require(least=0)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", bugs_for(KILLS, SEED), ids=lambda bug: bug.name)
async def test_a_bug_planted_in_the_core_is_found(tmp_path: Path, bug: PlantedBug) -> None:
    machine = SessionMachine(FLOW, turns(), env=bug.plant(tmp_path / "copy"), patience=40)
    started = time.monotonic()
    with pytest.raises(HistoryFailedError) as failed:
        await machine.run(tmp_path / "run", histories=300, seed=SEED, lanes=4)
    number, cause = failed.value.history.number, failed.value.__cause__
    print(f"{bug.name}: history {number} after {time.monotonic() - started:.0f} s: {cause}")
    assert isinstance(cause, InvariantBrokenError), failed.value
    assert cause.invariant_id == bug.invariant
    message = str(failed.value)
    assert f"[{bug.invariant}]" in message
    assert f"DEX_AGENTS_HISTORY={SEED}:{number}" in message


@pytest.mark.crash
@pytest.mark.timeout(3600)
async def test_generated_histories_break_no_invariant(tmp_path: Path) -> None:
    wanted = histories_for(KILLS)
    report = await SessionMachine(FLOW, turns()).run(tmp_path, histories=wanted, seed=SEED, lanes=6)
    print(report.render())
    report.require(least=20 if wanted == 300 else 0)
