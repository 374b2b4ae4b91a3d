"""Tool calls: how a record becomes final, and what an answer or a deadline does to it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex_agents import (
    AgentInterrupt,
    AgentInterruptResolution,
    AgentToolCall,
    AgentUsage,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionError,
    ToolExecutionResult,
    build_turn_failure_note,
    describe_tool_call_outcome,
)
from dex_agents._json_form import encoded_bytes
from dex_agents._session.approvals import (
    EXPIRED,
    ApprovalResult,
    decide_approval,
    find_interrupt,
    is_open,
    timer_until,
    without_interrupt,
)
from dex_agents._session.notes import MAX_NOTE_CHARACTERS, build_bounded_note
from dex_agents._session.reading import cut_for_snapshot
from dex_agents._session.tools import (
    MAX_RESULT_BYTES_IN_RECORD,
    finish_after_crash,
    finish_with_error,
    finish_with_result,
    finish_with_unknown_outcome,
    join_output,
)

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
CALL = AgentToolCall(
    "c1", "turn-1", "act", '{"x": 1}', ToolEffect.READ, False, 0, framework_payload='{"p": 1}'
)
ASKED = replace(CALL, requires_approval=True, status=ToolCallStatus.AWAITING_APPROVAL)
INTERRUPT = AgentInterrupt(
    "turn-1~c1", "turn-1", "c1", "act", "{}", ToolEffect.READ, NOW, NOW + timedelta(seconds=90)
)
LIMIT = 512 * 1024
WRITES = [effect for effect in ToolEffect if effect is not ToolEffect.READ]


# --- results ------------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-TOOL-08", "CORE-TOOL-11")
def test_a_short_result_is_kept_in_the_record() -> None:
    final = finish_with_result(CALL, ToolExecutionResult("done", None, AgentUsage(1)), LIMIT)
    assert final.output is None
    assert final.record == replace(
        CALL, status=ToolCallStatus.SUCCEEDED, output="done", usage=AgentUsage(1)
    )
    replaced = finish_with_result(CALL, ToolExecutionResult("done", '{"q": 2}'), LIMIT)
    assert replaced.record.framework_payload == '{"q": 2}'


@pytest.mark.requirement("CORE-TOOL-08", "CORE-TOOL-11")
@given(
    st.text(st.characters(exclude_categories=()), max_size=20_000),
    st.none() | st.text(max_size=100),
    st.integers(1, 40),
)
def test_a_result_comes_back_whole_however_it_is_stored(
    text: str, payload: str | None, times: int
) -> None:
    output = text * times
    final = finish_with_result(CALL, ToolExecutionResult(output, payload), 10_000_000)
    joined = join_output(final.record, final.output)
    assert joined.status is ToolCallStatus.SUCCEEDED
    assert joined.output == output
    kept = CALL.framework_payload if payload is None else payload
    assert joined.framework_payload == kept
    assert not joined.is_output_cut
    assert encoded_bytes(final.record) <= MAX_RESULT_BYTES_IN_RECORD + encoded_bytes(CALL) + 13_000
    completed = final.completed()
    assert completed.record_bytes == encoded_bytes(final.record)
    assert bool(completed.output_bytes) == (final.output is not None)


@pytest.mark.requirement("CORE-TOOL-10")
@pytest.mark.parametrize("result", [None, "text", 42, ToolExecutionResult(7)])  # pyright: ignore[reportArgumentType] - on purpose
def test_a_result_of_the_wrong_kind_says_nothing_about_a_write(result: object) -> None:
    assert finish_with_result(CALL, result, LIMIT).record.status is ToolCallStatus.FAILED
    for effect in WRITES:
        record = finish_with_result(replace(CALL, effect=effect), result, LIMIT).record
        assert record.status is ToolCallStatus.OUTCOME_UNKNOWN
        assert record.output is None
        assert record.error


@pytest.mark.requirement("CORE-TOOL-09")
def test_a_result_above_the_limit_names_the_tool_and_the_size_and_keeps_the_usage() -> None:
    result = ToolExecutionResult("\x00\x01" * 600, None, AgentUsage(3))
    for effect in ToolEffect:
        record = finish_with_result(replace(CALL, effect=effect), result, 1000).record
        expected = (
            ToolCallStatus.FAILED if effect is ToolEffect.READ else ToolCallStatus.OUTCOME_UNKNOWN
        )
        assert record.status is expected
        assert "'act'" in (record.error or "")
        assert "1000" in (record.error or "")
        assert record.usage == AgentUsage(3)


@pytest.mark.requirement("CORE-EFFECT-01", "CORE-EFFECT-02")
@pytest.mark.parametrize("effect", list(ToolEffect))
def test_used_up_attempts_fail_a_read_and_leave_a_write_unknown(effect: ToolEffect) -> None:
    record = finish_after_crash(replace(CALL, effect=effect), "worker lost").record
    assert record.error == "worker lost"
    if effect is ToolEffect.READ:
        assert record.status is ToolCallStatus.FAILED
    else:
        assert record.status is ToolCallStatus.OUTCOME_UNKNOWN


@pytest.mark.requirement("CORE-TOOL-03")
def test_a_lost_single_attempt_is_unknown_and_an_error_for_the_model_is_failed() -> None:
    lost = finish_with_unknown_outcome(CALL, "worker lost").record
    assert (lost.status, lost.error) == (ToolCallStatus.OUTCOME_UNKNOWN, "worker lost")
    unclassified = replace(CALL, effect=ToolEffect.UNCLASSIFIED)
    failed = finish_with_error(unclassified, ToolExecutionError("no"), LIMIT).record
    assert (failed.status, failed.error) == (ToolCallStatus.FAILED, "no")
    long = finish_with_error(CALL, ToolExecutionError("x" * 100_000), LIMIT).record
    assert len((long.error or "").encode()) <= 8 * 1024


@pytest.mark.requirement("CORE-TOOL-18")
@given(st.none() | st.text(st.characters(exclude_categories=()), max_size=200), st.integers(1, 400))
def test_the_payload_of_a_failure_comes_back_however_it_is_stored(
    text: str | None, times: int
) -> None:
    payload = None if text is None else text * times
    final = finish_with_error(CALL, ToolExecutionError("no", framework_payload=payload), 10_000_000)
    joined = join_output(final.record, final.output)
    assert joined == replace(
        CALL,
        status=ToolCallStatus.FAILED,
        error="no",
        framework_payload=CALL.framework_payload if payload is None else payload,
    )
    assert not final.left_out


@pytest.mark.requirement("CORE-TOOL-18")
@pytest.mark.parametrize("payload", ["\x00\x01" * 600, {"not": "text"}])
def test_a_payload_that_cannot_be_stored_takes_nothing_from_the_failure(payload: Any) -> None:
    final = finish_with_error(CALL, ToolExecutionError("no", framework_payload=payload), 1000)
    assert final.record == replace(CALL, status=ToolCallStatus.FAILED, error="no")
    assert final.output is None
    assert final.left_out


@pytest.mark.requirement("CORE-RPC-11")
def test_a_snapshot_shows_the_beginning_of_an_output_and_no_adapter_data() -> None:
    record = replace(CALL, status=ToolCallStatus.SUCCEEDED, output="x" * 5000)
    cut = cut_for_snapshot(record)
    assert cut.output == "x" * 2000
    assert cut.is_output_cut
    assert cut.framework_payload is None
    assert not cut_for_snapshot(replace(record, output="short")).is_output_cut


# --- approvals ----------------------------------------------------------------------------------


def test_an_approval_lets_the_call_run() -> None:
    decision = decide_approval(ASKED, None, AgentInterruptResolution(True), NOW)
    assert decision.result is ApprovalResult.RUN
    assert decision.record.status is ToolCallStatus.APPROVED


@pytest.mark.requirement("CORE-APPROVAL-05")
def test_a_rejection_is_final_and_keeps_the_message() -> None:
    decision = decide_approval(ASKED, None, AgentInterruptResolution(False, "no"), NOW)
    assert decision.result is ApprovalResult.REJECTED
    assert decision.record.status is ToolCallStatus.REJECTED
    assert decision.record.rejection_message == "no"


@pytest.mark.requirement("CORE-APPROVAL-06")
def test_nobody_answering_by_the_deadline_is_a_rejection() -> None:
    assert INTERRUPT.deadline is not None
    decision = decide_approval(ASKED, INTERRUPT, None, INTERRUPT.deadline)
    assert decision.result is ApprovalResult.EXPIRED
    assert decision.record.status is ToolCallStatus.REJECTED
    assert decision.record.rejection_message == EXPIRED


@pytest.mark.requirement("CORE-APPROVAL-04")
def test_a_timer_that_fires_early_waits_again() -> None:
    early = NOW + timedelta(seconds=89.9)
    assert decide_approval(ASKED, INTERRUPT, None, early).result is ApprovalResult.WAIT


@pytest.mark.requirement("CORE-APPROVAL-07")
def test_an_answer_on_its_way_wins_over_the_deadline() -> None:
    late = NOW + timedelta(days=1)
    assert decide_approval(ASKED, None, None, late).result is ApprovalResult.WAIT


def test_a_final_record_is_left_alone() -> None:
    done = replace(ASKED, status=ToolCallStatus.REJECTED)
    decision = decide_approval(done, INTERRUPT, AgentInterruptResolution(True), NOW)
    assert decision.result is ApprovalResult.DONE
    assert decision.record is done


@pytest.mark.requirement("CORE-RPC-04")
def test_an_interrupt_is_open_until_its_deadline() -> None:
    assert INTERRUPT.deadline is not None
    assert is_open(INTERRUPT, INTERRUPT.deadline - timedelta(microseconds=1))
    assert not is_open(INTERRUPT, INTERRUPT.deadline)
    assert is_open(replace(INTERRUPT, deadline=None), NOW + timedelta(days=9999))


@pytest.mark.requirement("CORE-APPROVAL-03")
@given(st.floats(-1000, 10_000))
def test_a_timer_lasts_whole_seconds_and_never_ends_before_the_deadline(left: float) -> None:
    deadline = NOW + timedelta(seconds=left)
    duration = timer_until(deadline, NOW)
    assert duration.total_seconds().is_integer()
    assert duration >= timedelta(0)
    assert NOW + duration >= deadline
    assert duration < timedelta(seconds=max(0.0, left) + 1)


@pytest.mark.requirement("CORE-RPC-03")
def test_an_answered_interrupt_leaves_the_others_pending() -> None:
    other = replace(INTERRUPT, interrupt_id="turn-1~c2")
    assert find_interrupt([INTERRUPT, other], "turn-1~c2") is other
    assert find_interrupt([INTERRUPT], "turn-2~c1") is None
    assert without_interrupt([INTERRUPT, other], "turn-1~c1") == [other]


# --- what the model reads -----------------------------------------------------------------------


@pytest.mark.requirement("CORE-RUNNER-16")
def test_every_final_status_has_a_text_for_the_model_and_no_other_has() -> None:
    texts = {
        describe_tool_call_outcome(replace(CALL, status=status, output="out", error="why"))
        for status in ToolCallStatus
        if status.is_final
    }
    assert len(texts) == 4
    assert "out" in texts
    for status in ToolCallStatus:
        if not status.is_final:
            with pytest.raises(ValueError, match=status.value):
                describe_tool_call_outcome(replace(CALL, status=status))


@pytest.mark.requirement("CORE-RUNNER-16")
def test_a_rejection_message_reaches_the_model() -> None:
    rejected = replace(CALL, status=ToolCallStatus.REJECTED, rejection_message="ask again at 5")
    assert "ask again at 5" in describe_tool_call_outcome(rejected)


@pytest.mark.requirement("CORE-FAIL-07")
def test_the_note_lists_the_calls_in_model_order() -> None:
    second = replace(CALL, deferral_order=1, status=ToolCallStatus.FAILED, error="no")
    first = replace(CALL, tool_name="pay", status=ToolCallStatus.SUCCEEDED, output="paid")
    assert build_turn_failure_note([second, first]) == (
        "[Dex] The previous turn failed after these tool calls ran:\n"
        '- pay {"x": 1} -> succeeded: paid\n'
        '- act {"x": 1} -> failed: The tool call failed: no\n'
        "Do not repeat these tool calls unless the user asks again."
    )


@pytest.mark.requirement("CORE-FAIL-08")
@pytest.mark.parametrize("calls", [1, 7, 200, 1000])
def test_a_note_stays_short_enough_to_be_stored_whatever_the_calls_held(calls: int) -> None:
    huge = replace(
        CALL,
        status=ToolCallStatus.OUTCOME_UNKNOWN,
        tool_name="n" * 5000,
        arguments="a" * 900_000,
        error="e" * 8000,
    )
    note = build_bounded_note([huge] * calls, missing=3)
    assert note is not None
    assert len(note) < 2 * MAX_NOTE_CHARACTERS
    assert f"{3 + max(0, calls - 200)} further tool calls" in note
    assert note.startswith("[Dex] The previous turn failed")


@pytest.mark.requirement("CORE-FAIL-07")
def test_there_is_no_note_when_no_call_ran() -> None:
    assert build_bounded_note([]) is None
    assert build_bounded_note([], missing=1) is not None
