"""Ids: the session's form, and one meaning per id in a conversation."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from dex_agents_openai_agents._stored.call_ids import (
    MAX_CALL_ID_LENGTH,
    call_ids_of,
    to_model_call_id,
    to_session_call_id,
    with_unique_call_ids,
)


@given(st.text())
def test_the_sessions_form_has_no_slash_and_leads_back(call_id: str) -> None:
    session_id = to_session_call_id(call_id)
    assert "/" not in session_id
    assert to_model_call_id(session_id) == call_id


def test_a_plain_id_stays_as_it_is() -> None:
    assert to_session_call_id("call_abc-1.2:3") == "call_abc-1.2:3"


IDS = st.one_of(
    st.sampled_from(["c1", "c2", "c1_turn-1", "x" * 64]), st.text(min_size=1, max_size=5)
)
TURNS = st.lists(st.lists(IDS, max_size=4, unique=True), max_size=6)


@given(TURNS, st.sets(IDS))
@example([["c1", "c1_turn-1"]], {"c1"})
def test_after_rendering_no_two_turns_share_an_id(turns: list[list[str]], taken: set[str]) -> None:
    items = [
        (
            f"turn-{number}",
            [
                item
                for call_id in ids
                for item in (
                    {"type": "function_call", "call_id": call_id},
                    {"type": "function_call_output", "call_id": call_id, "of": (number, call_id)},
                )
            ],
        )
        for number, ids in enumerate(turns, 1)
    ]
    rendered = with_unique_call_ids(items, taken)
    outputs: list[Any] = [item["call_id"] for item in rendered if "of" in item]
    assert len(set(outputs)) == len(outputs)
    assert not set(outputs) & taken
    assert [item["of"] for item in rendered if "of" in item] == [
        (number, call_id) for number, ids in enumerate(turns, 1) for call_id in ids
    ]
    for request, output in zip(rendered[::2], rendered[1::2], strict=True):
        assert request["call_id"] == output["call_id"]
    renamed = call_ids_of(rendered) - {call_id for ids in turns for call_id in ids}
    assert all(len(call_id) <= MAX_CALL_ID_LENGTH for call_id in renamed)


def test_calls_of_a_program_follow_the_program_to_its_new_id() -> None:
    turn = [
        {"type": "program", "call_id": "p"},
        {"type": "function_call", "call_id": "f", "caller": {"type": "program", "caller_id": "p"}},
    ]
    rendered = with_unique_call_ids([("turn-1", turn)], {"p"})
    assert rendered[0]["call_id"] != "p"
    assert rendered[1]["caller"]["caller_id"] == rendered[0]["call_id"]
    assert turn[0]["call_id"] == "p"
