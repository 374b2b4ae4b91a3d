"""Errors, ids and text: what is retried, what is refused, and what can always be sent."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dex_agents import (
    AgentDefinitionError,
    InvalidMessageIdError,
    InvalidSessionIdError,
    ModelError,
    RunnerContractError,
    TurnFailedError,
)
from dex_agents._session.failures import (
    FailTurn,
    ModelRetryWindow,
    RetryModelCall,
    describe_turn_failure,
    judge_model_error,
    turn_failure,
    whole_seconds,
)
from dex_agents._session.ids import (
    REMEMBERED_TURNS,
    check_flow_type,
    check_message_id,
    check_session_id,
    check_tool_call_id,
    idempotency_key,
    interrupt_id,
    message_id_key,
    turn_slot_key,
)
from dex_agents._session.text import (
    MAX_ERROR_BYTES,
    bound_bytes,
    bound_characters,
    describe_error,
    is_encodable,
    make_encodable,
)

START = datetime(2026, 5, 1, tzinfo=UTC)
any_text = st.text(st.characters(exclude_categories=()), max_size=2000)


def window(seconds_used: float = 0, attempts_left: int = 2) -> ModelRetryWindow:
    return ModelRetryWindow(
        START + timedelta(seconds=seconds_used), START, timedelta(minutes=30), attempts_left
    )


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-FAIL-01")
def test_final_failures_are_not_retried() -> None:
    judged = judge_model_error(TurnFailedError("tripped", "Guardrail"), window())
    assert isinstance(judged, FailTurn)
    assert describe_turn_failure(judged.failure) == "Guardrail: tripped"
    broken = judge_model_error(RunnerContractError("no usage"), window())
    assert isinstance(broken, FailTurn)
    assert describe_turn_failure(broken.failure) == "RunnerContractError: no usage"


@pytest.mark.requirement("CORE-FAIL-01")
def test_an_unnamed_final_failure_is_named_after_its_class() -> None:
    class Refused(TurnFailedError):
        pass

    assert Refused("no").error_type == "Refused"


@pytest.mark.requirement("CORE-FAIL-03")
def test_a_model_error_is_retried_after_the_time_the_provider_asks_for() -> None:
    assert judge_model_error(ModelError("busy", "E", retry_after=2.1), window()) == RetryModelCall(
        "E: busy", 3
    )
    assert judge_model_error(ModelError("busy", "E"), window()) == RetryModelCall("E: busy")
    by_duration = ModelError("busy", "E", retry_after=timedelta(milliseconds=1))
    assert judge_model_error(by_duration, window()) == RetryModelCall("E: busy", 1)


@pytest.mark.requirement("CORE-FAIL-04")
def test_a_wait_that_ends_after_the_window_fails_the_turn_at_once() -> None:
    error = ModelError("busy", "RateLimit", retry_after=60)
    assert isinstance(judge_model_error(error, window(1739)), RetryModelCall)
    judged = judge_model_error(error, window(1740))
    assert isinstance(judged, FailTurn)
    assert judged.failure.error_type == "RateLimit"
    assert "60 s" in judged.failure.message


@pytest.mark.requirement("CORE-FAIL-05")
def test_the_last_attempt_leaves_the_decision_to_the_failure_route() -> None:
    error = ModelError("busy", "E", retry_after=9999)
    assert judge_model_error(error, window(attempts_left=0)) == RetryModelCall("E: busy")


@pytest.mark.requirement("CORE-FAIL-02")
def test_any_other_error_is_retried_with_its_type_in_the_text() -> None:
    assert judge_model_error(OSError("gone"), window()) == RetryModelCall("OSError: gone")


@pytest.mark.requirement("CORE-FAIL-03")
@given(st.none() | st.floats())
def test_a_delay_is_a_whole_positive_number_or_none(seconds: float | None) -> None:
    delay = whole_seconds(seconds)
    if seconds is None or not math.isfinite(seconds):
        assert delay is None
    else:
        assert delay is not None
        assert delay >= 1
        assert delay >= seconds


@pytest.mark.requirement("CORE-FAIL-14")
@given(any_text, any_text)
def test_a_recorded_failure_can_be_stored_and_is_bounded(kind: str, message: str) -> None:
    failure = turn_failure(kind, message)
    assert len(describe_turn_failure(failure).encode()) <= MAX_ERROR_BYTES + 202


# --- text ---------------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-FAIL-11")
@given(any_text, st.integers(20, 200))
def test_bounded_text_can_be_sent_and_fits(text: str, limit: int) -> None:
    bounded = bound_bytes(text, limit)
    assert is_encodable(bounded)
    assert len(bounded.encode()) <= limit
    if is_encodable(text) and len(text.encode()) <= limit:
        assert bounded == text
    assert len(bound_characters(text, limit)) <= limit
    assert is_encodable(make_encodable(text))


def test_an_error_that_cannot_even_be_shown_still_has_a_text() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert describe_error(Rude()).startswith("Rude: ")
    assert describe_error(ValueError()) == "ValueError"
    assert describe_error(ValueError("\ud83d")) == "ValueError: \\ud83d"


# --- ids ----------------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-RPC-18")
@example(["/", "%", "~", "%2F", "%25", "%7E"])
@given(st.lists(st.text(min_size=1, max_size=20), min_size=2, max_size=8, unique=True))
def test_different_message_ids_have_different_keys_that_a_map_accepts(ids: list[str]) -> None:
    keys = [message_id_key(message_id) for message_id in ids]
    assert len(set(keys)) == len(keys)
    slots = {turn_slot_key(number) for number in range(1, 1500)}
    for key in keys:
        assert "/" not in key
        assert key not in slots


@pytest.mark.requirement("CORE-RPC-14")
def test_a_turn_reuses_the_slot_of_the_turn_a_thousand_before() -> None:
    assert REMEMBERED_TURNS == 1000
    assert turn_slot_key(5) == turn_slot_key(5 + REMEMBERED_TURNS)
    assert len({turn_slot_key(n) for n in range(1, REMEMBERED_TURNS + 1)}) == REMEMBERED_TURNS


@pytest.mark.requirement("CORE-RUNNER-13", "CORE-TOOL-01", "CORE-APPROVAL-09")
def test_ids_of_calls_differ_by_turn() -> None:
    assert interrupt_id("turn-1", "c") == "turn-1~c"
    assert interrupt_id("turn-1", "c") != interrupt_id("turn-11", "c")
    assert idempotency_key("s", "turn-2", "c") == "s/turn-2/c"


@pytest.mark.requirement("CORE-RPC-16")
@pytest.mark.parametrize(
    ("session_id", "character"),
    [("a/b", "/"), ("a:b", ":"), ("a$b", "$"), ("", ""), ("  ", ""), ("\ud800", "")],
)
def test_an_unusable_session_id_is_refused_naming_the_character(
    session_id: str, character: str
) -> None:
    with pytest.raises(InvalidSessionIdError) as raised:
        check_session_id(session_id)
    assert (raised.value.session_id, raised.value.character) == (session_id, character)
    if character:
        assert repr(character) in str(raised.value)


def test_ordinary_ids_are_accepted() -> None:
    for session_id in ("session-42", "user@host.example", "日本", "a b", "x" * 500):
        check_session_id(session_id)
    for message_id in ("1", "a/b", "~", "%2F"):
        check_message_id("s", message_id)
    for call_id in ("call_1", "a:b", "a~b", "é", "."):
        check_tool_call_id(call_id)
    check_flow_type("TriageAgent")


@pytest.mark.requirement("CORE-STEP-15", "CORE-RPC-17")
def test_unusable_message_ids_and_flow_types_are_refused() -> None:
    for message_id in ("", " ", "\ud800", "x" * 257):
        with pytest.raises(InvalidMessageIdError):
            check_message_id("s", message_id)
    for flow_type in ("", " ", "a/b", "a:b", "a$b"):
        with pytest.raises(AgentDefinitionError):
            check_flow_type(flow_type)
