from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tools.benchmarks.floor import Floor
from tools.benchmarks.report import MAX_GROWTH, Report, count_places, ratios, table
from tools.benchmarks.running import QUICK, run_benchmark
from tools.benchmarks.turns import Cost

FLOOR = Floor(call_cpu_ms=1.0, call_ms=1.0, flush_ms=1.0)
TURN = Cost(turns=10, seconds=1.0, latencies=tuple([0.1] * 10), cpu={"engine": 0.2, "client": 0.1})


def broken(report: Report) -> list[str]:
    return [ratio.what for ratio in ratios(report) if not ratio.holds]


def test_a_turn_is_compared_with_the_bare_one_that_ran_beside_it() -> None:
    report = Report(FLOOR, sessions={"a": TURN, "b": TURN}, bare={"a": TURN})
    assert broken(report) == []
    cheap = replace(TURN, cpu={"engine": 0.001})
    report.bare["a"] = cheap
    assert broken(report) == ["CPU of a turn to a bare turn, a"]


def test_a_machine_twice_as_slow_changes_no_ratio() -> None:
    slow = replace(TURN, seconds=2.0, cpu={name: 2 * used for name, used in TURN.cpu.items()})
    fast_report = Report(FLOOR, sessions={"a": TURN}, bare={"a": TURN}, growth=(5.0, 6.0))
    slow_floor = Floor(call_cpu_ms=2.0, call_ms=2.0, flush_ms=2.0)
    slow_report = Report(slow_floor, sessions={"a": slow}, bare={"a": slow}, growth=(10.0, 12.0))
    fast, slow_ones = (
        {ratio.what: ratio.value for ratio in ratios(report)}
        for report in (fast_report, slow_report)
    )
    assert fast == pytest.approx(slow_ones)


def test_a_session_that_grows_dearer_does_not_hold() -> None:
    assert broken(Report(FLOOR, growth=(1.0, MAX_GROWTH))) == []
    assert broken(Report(FLOOR, growth=(1.0, MAX_GROWTH * 1.01))) == ["CPU of turn 0 to turn 10"]


def test_happenings_are_counted_a_turn_and_others_are_passed_over() -> None:
    lines = ["commit.before:Step tasks=1", "commit.after:Step", "disk.before", "disk.before"]
    counts = count_places(lines, turns=2)
    assert counts["transitions"] == 0.5
    assert counts["commits"] == 1.0
    assert counts["tasks sent"] == 0.0


def test_what_does_not_hold_is_marked_in_the_table() -> None:
    lines = list(table(Report(FLOOR, parked=0.5)))
    assert lines[-1].startswith("| cores used by parked sessions | 0.5 (does not hold)")


@pytest.mark.soak
def test_the_ratios_hold_on_this_machine(tmp_path: Path) -> None:
    report = asyncio.run(run_benchmark(QUICK, tmp_path))
    assert len(list(ratios(report))) >= 10
    assert broken(report) == [], "\n".join(table(report))
