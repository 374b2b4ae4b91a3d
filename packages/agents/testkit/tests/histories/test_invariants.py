"""Every invariant holds of a good session, and sees its own breach and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from dex_agents import (
    AgentEvent,
    AgentEventType,
    AgentMessage,
    AgentSnapshot,
    AgentState,
    AgentStatus,
    AgentUsage,
    MessageRole,
)
from dex_agents.testing import EXECUTE_COMPLETED_EVENT, Invocation, StepHistoryEntry
from dex_agents_testkit.histories import INVARIANTS, InvariantBrokenError, Witness

USAGE = {"model_calls": 1, "total_tokens": 5}
FLOW = {"flow_id": "s", "turn_id": "turn-1", "attempt": 1}


def at(name: str, **details: Any) -> Invocation:
    return Invocation(name, {**FLOW, **details}, 1, 0.0)


def event(kind: AgentEventType, turn_id: str = "turn-1", **payload: object) -> AgentEvent:
    return AgentEvent(kind, turn_id, "RunModel-1", 1, payload)


def message(
    sequence: int, role: MessageRole, message_id: str = "", turn_id: str = "turn-1"
) -> AgentMessage:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return AgentMessage(sequence, turn_id, role, "text", "{}", now, message_id)


def good() -> Witness:
    """A refund was approved and ran, then the model answered; a second turn failed after a call."""
    messages = (
        message(1, MessageRole.USER, "m1"),
        message(2, MessageRole.ASSISTANT),
        message(3, MessageRole.USER, "m2", "turn-2"),
        message(4, MessageRole.USER, "", "turn-2"),
    )
    tool = {"tool_call_id": "c1", "idempotency_key": "s/turn-1/c1", "effect": "unclassified"}
    records = {"c1": {"status": "succeeded", "usage": None}}
    more = {"c2": {"status": "succeeded", "usage": None}}
    state = AgentState(
        AgentStatus.WAITING_FOR_USER_MESSAGE, 2, 4, last_turn_error="the guardrail tripped"
    )
    return Witness(
        "s",
        sent=[("m1", "refund"), ("m2", "and then?")],
        sent_again=1,
        answered=["turn-1~c1"],
        answered_again=[False],
        looks=[(AgentSnapshot(), messages[:1])],
        snapshot=AgentSnapshot(state, usage=AgentUsage(model_calls=3, total_tokens=15)),
        messages=messages,
        events=[
            event(AgentEventType.INTERRUPT_RESOLVED, interrupt_id="turn-1~c1"),
            event(AgentEventType.TOOL_CALL_FINISHED, tool_call_id="c1", status="succeeded"),
            event(AgentEventType.TURN_COMPLETED),
            event(AgentEventType.TURN_FAILED, "turn-2"),
        ],
        steps=[
            StepHistoryEntry(EXECUTE_COMPLETED_EVENT, "CallSingleAttemptTool", "x", 1, "c1"),
            StepHistoryEntry(EXECUTE_COMPLETED_EVENT, "CallTool", "y", 1, "c2"),
        ],
        arrivals=[
            at("model.before", step="a", sequences=[1], records={}),
            at("model.after", step="a", outcome="ToolCallsRequested", usage=USAGE, calls=["c1"]),
            at("tool.before:refund", **tool),
            at("model.before", step="b", sequences=[1], records=records),
            at("model.after", step="b", outcome="TurnCompleted", usage=USAGE),
            at("model.before", turn_id="turn-2", step="c", sequences=[1, 2, 3], records={}),
            at(
                "model.after",
                turn_id="turn-2",
                step="c",
                outcome="ToolCallsRequested",
                usage=USAGE,
                calls=["c2"],
            ),
            at("model.before", turn_id="turn-2", step="d", sequences=[1, 2, 3], records=more),
            at("model.after", turn_id="turn-2", step="d", raised="TurnFailedError"),
        ],
    )


def with_records(witness: Witness, records: dict[str, Any]) -> None:
    arrivals = list(witness.arrivals)
    arrivals[3] = at("model.before", step="b", sequences=[1], records=records)
    witness.arrivals = arrivals


def lose_a_record(witness: Witness) -> None:
    with_records(witness, {})


def go_on_early(witness: Witness) -> None:
    with_records(witness, {"c1": {"status": "pending", "usage": None}})
    witness.events = [e for e in witness.events if e.type is not AgentEventType.TOOL_CALL_FINISHED]


def run_twice(witness: Witness) -> None:
    witness.arrivals = [*witness.arrivals, witness.arrivals[2]]


def miscount(witness: Witness) -> None:
    witness.snapshot = replace(witness.snapshot, usage=AgentUsage(model_calls=4, total_tokens=20))


def leave_a_gap(witness: Witness) -> None:
    witness.messages = (*witness.messages[:3], replace(witness.messages[3], sequence=5))


def change_the_past(witness: Witness) -> None:
    witness.messages = (replace(witness.messages[0], text="other"), *witness.messages[1:])


def take_an_id_twice(witness: Witness) -> None:
    keep_messages(witness, (*witness.messages, message(5, MessageRole.USER, "m1")))


def forget_the_note(witness: Witness) -> None:
    keep_messages(witness, witness.messages[:3])


def keep_messages(witness: Witness, messages: tuple[AgentMessage, ...]) -> None:
    state = witness.snapshot.state
    assert state is not None
    witness.messages = messages
    kept = replace(state, message_count=len(messages))
    witness.snapshot = replace(witness.snapshot, state=kept)


def answer_twice(witness: Witness) -> None:
    witness.answered_again = [True]


def tell_a_success(witness: Witness) -> None:
    witness.events[-1] = event(AgentEventType.TURN_COMPLETED, "turn-2")


def leave_something(witness: Witness) -> None:
    witness.snapshot = replace(witness.snapshot, queued_message_count=1)


BREACHES: dict[str, Callable[[Witness], None]] = {
    "calls.one_record": lose_a_record,
    "calls.final_before_model": go_on_early,
    "effects.at_most_once": run_twice,
    "usage.adds_up": miscount,
    "messages.contiguous": leave_a_gap,
    "messages.unchanged": change_the_past,
    "messages.known_ids_dropped": take_an_id_twice,
    "failures.noted": forget_the_note,
    "answers.once": answer_twice,
    "events.consistent": tell_a_success,
    "state.settled": leave_something,
}


def broken_by(witness: Witness) -> set[str]:
    broken: set[str] = set()
    for invariant in INVARIANTS:
        try:
            invariant.check(witness)
        except InvariantBrokenError as error:
            broken.add(error.invariant_id)
    return broken


def test_a_good_session_breaks_nothing_and_meets_every_precondition() -> None:
    assert [invariant.check(good()) >= 1 for invariant in INVARIANTS] == [True] * len(INVARIANTS)


def test_every_invariant_has_a_breach() -> None:
    assert list(BREACHES) == [invariant.invariant_id for invariant in INVARIANTS]


@pytest.mark.parametrize("invariant_id", BREACHES)
def test_a_breach_is_seen_by_its_own_invariant_alone(invariant_id: str) -> None:
    witness = good()
    BREACHES[invariant_id](witness)
    assert broken_by(witness) == {invariant_id}
