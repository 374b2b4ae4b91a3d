"""What a run of the benchmark found, and the ratios in it that must hold.

Every ratio is between two measurements of one run, so it says the same on a fast machine and on a
slow one; a time would only say how busy the machine was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tools.benchmarks.floor import Floor
from tools.benchmarks.turns import Cost

#: The most that a turn may cost more than one of a Flow with the same Steps and nothing in them.
MAX_TURN_TO_BARE: Final = 4.0
#: The most CPU of a turn, in unary calls of 1 kB.
MAX_TURN_IN_CALLS: Final = 200.0
#: The most that a late turn of a long session may cost more than an early one.
MAX_GROWTH: Final = 1.3
#: The most of one core that sessions which wait may cost, all together.
MAX_PARKED: Final = 0.02
#: The most times that a turn may go to the disk, one session at a time.
MAX_COMMITS: Final = 13.0


@dataclass
class Report:
    """What was measured; what was left out is empty.

    Attributes:
        floor: The parts alone.
        sessions: Turns of agent sessions, by a title.
        bare: Turns of the bare Flow, by the title of the sessions they ran beside.
        counts: Happenings a turn, by name.
        growth: CPU ms of an early and of a late turn of one session.
        growth_turns: Turns of that session.
        parked: Share of a core that waiting sessions cost.
        stored: Bytes in the data folder a turn.
    """

    floor: Floor
    sessions: dict[str, Cost] = field(default_factory=dict[str, Cost])
    bare: dict[str, Cost] = field(default_factory=dict[str, Cost])
    counts: dict[str, float] = field(default_factory=dict[str, float])
    growth: tuple[float, float] | None = None
    growth_turns: int = 0
    parked: float | None = None
    stored: float = 0.0


@dataclass(frozen=True)
class Ratio:
    """One number that must not be above its limit."""

    what: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def ratios(report: Report) -> Iterator[Ratio]:
    """The ratios that must hold, of what was measured."""
    for title, cost in report.sessions.items():
        bare = report.bare.get(title)
        if bare is not None:
            ratio = cost.cpu_ms / bare.cpu_ms
            yield Ratio(f"CPU of a turn to a bare turn, {title}", ratio, MAX_TURN_TO_BARE)
        calls = cost.cpu_ms / report.floor.call_cpu_ms
        yield Ratio(f"CPU of a turn in unary calls, {title}", calls, MAX_TURN_IN_CALLS)
    if "commits" in report.counts:
        yield Ratio("commits a turn", report.counts["commits"], MAX_COMMITS)
    if report.growth is not None:
        early, late = report.growth
        what = f"CPU of turn {report.growth_turns} to turn 10"
        yield Ratio(what, late / early, MAX_GROWTH)
    if report.parked is not None:
        yield Ratio("cores used by parked sessions", report.parked, MAX_PARKED)


_PLACES: Final = {
    "commit.before": "transitions",
    "handout.before": "hand-outs",
    "disk.before": "commits",
    "send.before": "tasks sent",
    "control.before": "other frames sent",
    "stream.before": "stream messages",
    "reply.before": "calls answered",
}


def count_places(lines: list[str], turns: int) -> dict[str, float]:
    """Happenings a turn, from the lines of the engine's log of places."""
    counts = dict.fromkeys(_PLACES.values(), 0.0)
    for line in lines:
        name = _PLACES.get(line.split()[0].partition(":")[0])
        if name is not None:
            counts[name] += 1 / turns
    return counts


def table(report: Report) -> Iterator[str]:
    """The report as Markdown, line by line."""
    floor = report.floor
    yield f"A unary call: {floor.call_ms:.2f} ms, {floor.call_cpu_ms:.2f} ms CPU on both sides."
    yield f"4 kB to the disk: {floor.flush_ms:.2f} ms."
    yield ""
    yield "| what | turns/s | p50 ms | p95 ms | CPU ms a turn | CPU by process |"
    yield "|---|---|---|---|---|---|"
    for kind, costs in (("session", report.sessions), ("bare", report.bare)):
        for title, cost in costs.items():
            yield _row(f"{kind}, {title}", cost)
    if report.counts:
        yield ""
        counted = ", ".join(f"{name} {count:.1f}" for name, count in report.counts.items())
        yield f"A turn alone: {counted}; {report.stored / 1024:.1f} KiB stored."
    yield ""
    yield "| ratio | measured | at most |"
    yield "|---|---|---|"
    for ratio in ratios(report):
        mark = "" if ratio.holds else " (does not hold)"
        yield f"| {ratio.what} | {ratio.value:.3g}{mark} | {ratio.limit:g} |"


def _row(title: str, cost: Cost) -> str:
    cells = (
        title,
        f"{cost.per_second:.1f}",
        f"{cost.percentile_ms(0.5):.1f}",
        f"{cost.percentile_ms(0.95):.1f}",
        f"{cost.cpu_ms:.1f}",
        _processes(cost.cpu, cost.turns),
    )
    return f"| {' | '.join(cells)} |"


def _processes(cpu: Mapping[str, float], turns: int) -> str:
    return ", ".join(f"{name} {used / turns * 1e3:.1f}" for name, used in cpu.items())
