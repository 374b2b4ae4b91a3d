"""Histories are drawn from a seed, and every place and victim gets its share."""

from __future__ import annotations

import statistics
from collections import Counter

from hypothesis import strategies as st

from dex_agents_testkit.faults import PLACES, Victim
from dex_agents_testkit.histories import DEFAULT_PLACES, Kill, Say, draw_histories

MESSAGES = st.text(min_size=1, max_size=3)


def test_the_same_seed_draws_the_same_histories_and_another_one_others() -> None:
    first = draw_histories(MESSAGES, DEFAULT_PLACES, 10, seed=7)
    assert draw_histories(MESSAGES, DEFAULT_PLACES, 10, seed=7) == first
    assert draw_histories(MESSAGES, DEFAULT_PLACES, 10, seed=8) != first
    assert [history.number for history in first] == list(range(1, 11))


def test_histories_are_long_enough_and_all_places_are_struck_by_all_victims() -> None:
    # As many as there are places and victims; 300 are more than six times as many.
    count = len(DEFAULT_PLACES) * len(Victim)
    drawn = draw_histories(MESSAGES, DEFAULT_PLACES, count, seed=1)
    assert len(drawn) == count
    assert statistics.median(len(history.actions) for history in drawn) >= 8
    first = [next(a for a in history.actions if isinstance(a, Kill)) for history in drawn]
    dealt = Counter((kill.place, kill.victim) for kill in first)
    assert set(dealt.values()) == {1}
    assert len(dealt) == count
    assert set(DEFAULT_PLACES) <= {kind.name for kind in PLACES}


def test_work_is_under_way_when_a_place_may_be_reached() -> None:
    for history in draw_histories(MESSAGES, DEFAULT_PLACES, 10, seed=3):
        for position, action in enumerate(history.actions):
            if isinstance(action, Kill):
                assert isinstance(history.actions[position + 1], Say)
