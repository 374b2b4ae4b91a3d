"""What a kill run went through: per place how often it was reached, killed at, and with how much
work in the hands of workers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from dex_embedded._runtime.faults import PLACES


@dataclass
class PlaceReport:
    """One place.

    Attributes:
        arrivals: Times it was reached, by subject.
        kills: For each kill there, the tasks that workers had in their hands.
        killed_at: Kills by subject.
    """

    arrivals: Counter[str] = field(default_factory=Counter[str])
    kills: list[int] = field(default_factory=list[int])
    killed_at: Counter[str] = field(default_factory=Counter[str])


@dataclass
class KillReport:
    """All places of a run.

    Attributes:
        places: By name.
        not_reached: Lives of the engine that ended without an arrival at the wanted place.
    """

    places: dict[str, PlaceReport] = field(
        default_factory=lambda: {name: PlaceReport() for name in PLACES}
    )
    not_reached: Counter[str] = field(default_factory=Counter[str])

    @property
    def kills(self) -> int:
        return sum(len(place.kills) for place in self.places.values())

    def read(self, log: Path) -> None:
        """Takes in the fault log of one life of an engine."""
        for line in log.read_text().splitlines():
            where, tasks, *killed = line.split()
            name, _, subject = where.partition(":")
            place = self.places[name]
            place.arrivals[subject] += 1
            if killed:
                place.kills.append(int(tasks))
                place.killed_at[subject] += 1

    def table(self) -> str:
        """The report for people."""
        lines = [
            f"{'place':<16}{'arrivals':>9}{'kills':>7}{'with work':>11}{'tasks in flight':>17}",
        ]
        for name, place in self.places.items():
            busy = sum(tasks > 0 for tasks in place.kills)
            spread = (
                f"{sum(place.kills) / len(place.kills):.1f} (most {max(place.kills)})"
                if place.kills
                else "-"
            )
            lines.append(
                f"{name:<16}{place.arrivals.total():>9}{len(place.kills):>7}{busy:>11}{spread:>17}"
            )
        return "\n".join(lines)

    def write_json(self, path: Path, **facts: object) -> None:
        """The report for programs, with the subjects, and `facts` beside it."""
        places = {
            name: {
                "arrivals": place.arrivals.total(),
                "kills": len(place.kills),
                "tasks_in_flight": place.kills,
                "arrivals_by_subject": dict(place.arrivals),
                "kills_by_subject": dict(place.killed_at),
            }
            for name, place in self.places.items()
        }
        report = {
            **facts,
            "kills": self.kills,
            "places": places,
            "not_reached": dict(self.not_reached),
        }
        path.write_text(json.dumps(report, indent=2) + "\n")
