"""The list of behaviours, the tests that show them, and the page that says what is served."""

from __future__ import annotations

from dex.dexpb import dex_pb2 as pb
from engine_support import (
    HELD,
    NOT_HELD,
    NOT_TRIED,
    PAGE,
    REFUSED_BY_NAME,
    Behaviour,
    load_behaviours,
    marked_tests,
    outcomes_of,
    problems,
    render_page,
    worst,
)

from dex_embedded._wire.server import REFUSED, SERVED


def test_every_call_of_the_protocol_is_served_or_refused_by_name() -> None:
    service = pb.DESCRIPTOR.services_by_name["FlowService"]
    assert {method.name for method in service.methods} == {*SERVED, *REFUSED}


def test_every_behaviour_has_a_test_and_every_conformance_test_a_behaviour() -> None:
    assert problems(load_behaviours(), marked_tests()) == []


def test_a_behaviour_without_a_test_and_a_test_without_a_behaviour_are_both_noticed() -> None:
    behaviours = [Behaviour("a", "area", "A."), Behaviour("b", "area", "B.")]
    tests = {"t::one": ["a"], "t::two": [], "t::three": ["c"], "t::four": ["a"]}
    assert problems(behaviours, tests) == [
        "t::two shows no behaviour",
        "t::three shows c, which is not in the list",
        "b has no test",
        "a has more than one test",
    ]


def test_the_page_tells_the_list_of_behaviours_and_calls() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render_page(load_behaviours(), outcomes_of(page)) == page, (
        "run engine_support.py --write"
    )


def test_the_page_shows_every_behaviour_held_and_the_rest_refused_by_name() -> None:
    outcomes = outcomes_of(PAGE.read_text(encoding="utf-8"))
    for behaviour in load_behaviours():
        refused = behaviour.behaviour_id.startswith("refused.")
        expected = REFUSED_BY_NAME if refused else HELD
        assert outcomes[behaviour.behaviour_id] == expected, behaviour.behaviour_id


def test_a_behaviour_is_held_only_if_every_try_of_it_held() -> None:
    assert worst([HELD, HELD]) == HELD
    assert worst([HELD, NOT_TRIED]) == NOT_TRIED
    assert worst([NOT_TRIED, NOT_HELD, HELD]) == NOT_HELD
    assert worst([]) == NOT_TRIED
