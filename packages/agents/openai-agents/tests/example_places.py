"""Where a test kills, and what must still be true of the session afterwards."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from example_cases import Example

from dex_agents import AgentUsage

#: A write that may run only once.
_WRITE = "CallSingleAttemptTool"


@dataclass(frozen=True)
class Place:
    """A moment in the life of a session at which a process may die.

    Attributes:
        name: A Step method and the moment in it, such as `RunModel.execute begins`; or a place of
            the engine with the Step or call it concerns, such as `handout.before:RunModel`.
        count: Which one of that name in the session, from 1.
        victim: Who dies: `worker`, or `engine` at a place of its own.
    """

    name: str
    count: int
    victim: str = "worker"

    def __str__(self) -> str:
        suffix = "" if self.victim == "worker" else f" ({self.victim})"
        return f"{self.name} {self.count}{suffix}"

    @property
    def is_of_engine(self) -> bool:
        """Whether the engine comes to it, and not the worker."""
        return ":" in self.name

    @property
    def step(self) -> str:
        """The Step or call it concerns."""
        return self.name.partition(":")[2] if self.is_of_engine else self.name.partition(".")[0]

    @property
    def moment(self) -> str:
        """What of the Step is about to happen, or has."""
        return self.name.partition(":")[0] if self.is_of_engine else self.name.partition(" ")[2]


@dataclass
class Played:
    """What a session did.

    Attributes:
        ends: How each turn ended.
        requests: Bodies of all model requests.
        bodies: How often each tool ran.
        conversation: The stored messages, in order.
        usage: Usage that the session has added up.
        places: What the workers came to, repetitions included, in order.
        engine_places: What the engine came to on behalf of its Steps, in order.
    """

    ends: tuple[str, ...]
    requests: list[dict[str, Any]]
    bodies: Counter[str]
    conversation: list[tuple[str, str, str, str]]
    usage: AgentUsage
    places: list[Place]
    engine_places: list[Place]

    @property
    def engine_places_to_kill_at(self) -> list[Place]:
        """Places of the engine that every such session comes to.

        A task that is offered again, as on a busy machine, passes its places once more.
        """
        begun = Counter(place.step for place in self.places if place.moment == "begins")
        return [
            place
            for place in self.engine_places
            if place.step not in begun or place.count <= begun[place.step]
        ]

    def begun(self, step: str) -> int:
        """How often a Step was begun."""
        return sum(place.name == f"{step}.execute begins" for place in self.places)


def check_killed(example: Example, calm: Played, killed: Played, place: Place) -> None:
    """Assert that a kill at a place changed nothing, but for what ran beside it.

    A repeatable call that was running in the killed worker runs again, with all model calls inside
    it; a write that may run once is not run again, and the model is told that it may have run.
    """
    if place.moment == "begins" and place.step != _WRITE:
        begun, once = (Counter(each.name for each in played.places) for played in (killed, calm))
        assert begun[place.name] > once[place.name], "it did not begin again"
    repeated_tools = killed.begun("CallTool") - calm.begun("CallTool")
    for tool, count in calm.bodies.items():
        assert killed.bodies[tool] <= count + repeated_tools, f"{tool} ran too often"
    if killed.ends != calm.ends:
        assert killed.ends == example.ends_if_unknown, killed.ends
        assert _may_hide_a_write(calm, place), "no write was running"
        assert killed.bodies.total() <= calm.bodies.total()
        assert killed.requests[:-1] == calm.requests[:-1]
        assert "not known" in json.dumps(killed.requests[-1]["input"])
        return
    assert killed.bodies >= calm.bodies
    assert killed.conversation == calm.conversation
    assert killed.usage == calm.usage
    _check_requests(calm, killed, place, repeated_tools)


def _check_requests(calm: Played, killed: Played, place: Place, repeated_tools: int) -> None:
    as_before, now = (Counter(map(json.dumps, played.requests)) for played in (calm, killed))
    assert set(now) == set(as_before), "the model was asked something else"
    repeated = (now - as_before).total()
    if place.step == "RunModel" and not place.is_of_engine:
        assert repeated == _has_been_answered(calm, place), "the one call is repeated"
    elif not repeated_tools:
        assert repeated <= killed.begun("RunModel") - calm.begun("RunModel")
        assert repeated <= place.is_of_engine


def _has_been_answered(calm: Played, place: Place) -> bool:
    """Whether a model Step has its answer at a place; one that ends with a tool asks for none."""
    so_far = [each.name for each in calm.places[: calm.places.index(place) + 1]]
    begun = max(at for at, name in enumerate(so_far) if name == "RunModel.execute begins")
    return "RunModel.execute is answered" in so_far[begun:]


def _may_hide_a_write(calm: Played, place: Place) -> bool:
    """Whether a write that may run once is handed out in the round of Steps that a place is in."""
    if place.is_of_engine:
        places, turn, write = (
            calm.engine_places,
            "commit.after:RunModel",
            "handout.before:" + _WRITE,
        )
    else:
        places, turn, write = calm.places, "RunModel.execute begins", _WRITE + ".execute begins"
    at = places.index(Place(place.name, place.count))
    turns = [index for index, each in enumerate(places) if each.name == turn]
    begin = max((index for index in turns if index <= at), default=0)
    end = min((index for index in turns if index > at), default=len(places))
    return any(each.name == write for each in places[begin:end])


def spread(groups: Mapping[str, Sequence[Any]], wanted: int, seed: str) -> list[Any]:
    """Choose from groups by turns, so that each is there before one is there twice.

    Args:
        groups: What to choose from.
        wanted: How many; all if there are fewer.
        seed: The same seed chooses the same.
    """
    shuffled = [
        random.Random(f"{seed} {name}").sample(group, len(group)) for name, group in groups.items()
    ]
    rounds = max(map(len, shuffled), default=0)
    chosen = [
        group[number] for number in range(rounds) for group in shuffled if number < len(group)
    ]
    return chosen[:wanted]
