"""What can happen in the history of a session, and how Hypothesis draws histories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from dex_agents_testkit.faults import PLACES, Victim

#: Places at which histories are struck unless others are given: all but those that lie within the
#: engine's own writing of its file and of frames without a task.
DEFAULT_PLACES: Final[tuple[str, ...]] = tuple(
    kind.name
    for kind in PLACES
    if kind.name.partition(".")[0] not in ("control", "stream", "disk")
    and kind.name != "reply.after"
)
MIN_ACTIONS: Final = 8
MAX_ACTIONS: Final = 14


@dataclass(frozen=True, slots=True)
class Say:
    """The user sends a message."""

    text: str


@dataclass(frozen=True, slots=True)
class SayAgain:
    """The user's client sends an earlier message again, under its id; `back` chooses which."""

    back: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A person answers the question that waits, if there comes one."""

    approved: bool
    rejection_message: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerAgain:
    """Somebody answers a question that was answered before; `back` chooses which."""

    approved: bool
    back: int


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody reads the session and everything that was said in it."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The session is left alone until it waits for somebody."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A process is killed at a place that has still to be reached."""

    place: str
    victim: Victim


@dataclass(frozen=True, slots=True)
class Restart:
    """A process is ended in good order and started again; for `both`, one after the other."""

    victim: Victim


Action: TypeAlias = Say | SayAgain | Answer | AnswerAgain | Look | Settle | Kill | Restart


@dataclass(frozen=True, slots=True)
class History:
    """The actions of one session, in order.

    Attributes:
        number: Which one of its seed, from 1.
        actions: What happens.
    """

    number: int
    actions: tuple[Action, ...]

    def describe(self) -> str:
        """Return the actions as text, one a line."""
        return "\n".join(f"  {n}. {action}" for n, action in enumerate(self.actions, 1))


@st.composite
def _actions(
    draw: DrawFn, messages: SearchStrategy[str], places: Sequence[str]
) -> tuple[Action, ...]:
    back = st.integers(0, 3)
    victims = st.sampled_from(list(Victim))
    kill = st.builds(Kill, st.sampled_from(list(places)), victims)
    answer = st.one_of(
        st.just(Answer(True)),
        st.just(Answer(True)),
        st.builds(Answer, st.just(False), st.sampled_from([None, "not this one", "nein ✗"])),
    )
    calm: list[SearchStrategy[Action]] = [
        *[st.builds(Say, messages)] * 4,
        *[answer] * 5,
        *[st.builds(SayAgain, back)] * 2,
        *[st.builds(AnswerAgain, st.booleans(), back)] * 2,
        *[st.just(Look())] * 2,
        st.just(Settle()),
    ]
    anything = st.one_of(calm)
    count = draw(st.integers(MIN_ACTIONS, MAX_ACTIONS))
    # The first kill comes at once or after a calm start; a message follows, so that work is under
    # way when the place is reached.
    before = draw(st.integers(0, 3))
    actions: list[Action] = []
    if before:
        actions.append(Say(draw(messages)))
    actions += [draw(anything) for _ in range(before - 1)]
    actions += [draw(kill), Say(draw(messages))]
    restart = st.builds(Restart, st.sampled_from([Victim.WORKER, Victim.ENGINE]))
    rare = st.one_of(kill, kill, kill, restart)
    struck_again = draw(st.booleans())
    while len(actions) < count:
        if struck_again and len(actions) == count - 3:
            actions += [draw(rare), Say(draw(messages))]
        actions.append(draw(anything))
    return tuple(actions)


def draw_histories(
    messages: SearchStrategy[str], places: Sequence[str], count: int, seed: int
) -> list[History]:
    """Draw histories; the same arguments give the same ones.

    Places and victims are dealt out in turn over the first kills, so that each has its share.

    Args:
        messages: What users say.
        places: Where processes are killed.
        count: How many histories.
        seed: Any number.
    """
    drawn: list[tuple[Action, ...]] = []

    def collect(actions: tuple[Action, ...]) -> None:
        if len(drawn) < count:
            drawn.append(actions)

    _run_strategy(_actions(messages, places), collect, count, seed)
    dealt = [(place, victim) for victim in Victim for place in places]
    return [
        History(number, _deal(actions, *dealt[(number - 1) % len(dealt)]))
        for number, actions in enumerate(drawn, 1)
    ]


def _run_strategy(
    strategy: SearchStrategy[tuple[Action, ...]],
    collect: Callable[[tuple[Action, ...]], None],
    count: int,
    seed: int,
) -> None:
    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )
    @hypothesis.given(strategy)
    def run(actions: tuple[Action, ...]) -> None:
        collect(actions)

    run()


def _deal(actions: tuple[Action, ...], place: str, victim: Victim) -> tuple[Action, ...]:
    for position, action in enumerate(actions):
        if isinstance(action, Kill):
            dealt = replace(action, place=place, victim=victim)
            return (*actions[:position], dealt, *actions[position + 1 :])
    return actions
