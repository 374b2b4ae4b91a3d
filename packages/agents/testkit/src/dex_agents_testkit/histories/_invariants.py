"""What must hold of every session whatever happened to it, as data with a check each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any, Final

from dex_agents.testing import EXECUTE_COMPLETED_EVENT
from dex_agents.values import (
    AgentEventType,
    AgentMessage,
    AgentStatus,
    AgentUsage,
    MessageRole,
    ToolCallStatus,
    ToolEffect,
)
from dex_agents_testkit.histories._witness import TurnWitness, Witness

_RECORDING: Final = (
    "CallTool",
    "CallSingleAttemptTool",
    "RecordToolFailure",
    "RecordToolOutcomeUnknown",
)


class InvariantBrokenError(AssertionError):
    """A session broke an invariant.

    Attributes:
        invariant_id: Which one.
    """

    def __init__(self, invariant_id: str, problem: str) -> None:
        super().__init__(f"[{invariant_id}] {problem}")
        self.invariant_id = invariant_id


@dataclass(frozen=True, slots=True)
class Invariant:
    """One rule that holds for any agent.

    Attributes:
        invariant_id: Stable name, `area.what`.
        rule: The rule, as a sentence that can be false.
        precondition: What is counted to know that the rule was put to the test.
        check: Raises `InvariantBrokenError`, or returns how often the precondition was met.
        judges_arrivals: Whether what the workers noted is enough, also of a session that hangs.
    """

    invariant_id: str
    rule: str
    precondition: str
    check: Callable[[Witness], int]
    judges_arrivals: bool = False


def _require(holds: bool, invariant_id: str, problem: str) -> None:
    if not holds:
        raise InvariantBrokenError(invariant_id, problem)


# --- tool calls ---------------------------------------------------------------------------------


def _one_record(witness: Witness) -> int:
    name, checked = "calls.one_record", 0
    finals: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for turn in witness.turns():
        wanted: list[str] = []
        records: dict[str, Any] = {}
        for step in turn.steps.values():
            for given in step.given:
                records = given["records"]
                _require(
                    sorted(records) == sorted(wanted),
                    name,
                    f"{turn.turn_id} asked for calls {wanted}, but has records of {list(records)}",
                )
            checked += len(records)
            wanted += step.calls
        asked.update(wanted)
        for call_id, record in records.items():
            is_rejected = record["status"] == ToolCallStatus.REJECTED
            (rejected if is_rejected else finals)[call_id] += 1
    done = _recorded(witness)
    for call_id in asked:
        _require(
            finals[call_id] <= done[call_id] <= asked[call_id] - rejected[call_id],
            name,
            f"call {call_id!r} was asked for {asked[call_id]} times, rejected {rejected[call_id]} "
            f"times, and recorded by {done[call_id]} Steps",
        )
    return checked


def _recorded(witness: Witness) -> Counter[str]:
    """Count the Steps that made a record of a call final, by call id."""
    return Counter(
        entry.step_input
        for entry in witness.steps
        if entry.step_type in _RECORDING and entry.event_type == EXECUTE_COMPLETED_EVENT
    )


def _final_before_model(witness: Witness) -> int:
    checked = 0
    for turn in witness.turns():
        for step in turn.steps.values():
            for given in step.given:
                for call_id, record in given["records"].items():
                    _require(
                        ToolCallStatus(record["status"]).is_final,
                        "calls.final_before_model",
                        f"a model call of {turn.turn_id} was made while call {call_id!r} was "
                        f"{record['status']}",
                    )
                    checked += 1
    return checked


def _at_most_once(witness: Witness) -> int:
    runs: Counter[str] = Counter()
    for arrival in witness.arrivals:
        if not arrival.name.startswith("tool.before:"):
            continue
        if not ToolEffect(arrival.details["effect"]).is_repeatable:
            runs[arrival.details["idempotency_key"]] += 1
    for key, count in runs.items():
        _require(count == 1, "effects.at_most_once", f"the call {key} was started {count} times")
    return len(runs)


# --- usage --------------------------------------------------------------------------------------


def _usage_adds_up(witness: Witness) -> int:
    certain, possible = AgentUsage(), list[AgentUsage]()
    for turn in witness.turns():
        counted, open_ones = _turn_usage(turn)
        certain += counted
        possible += open_ones
    sums = {
        AgentUsage.total([certain, *chosen])
        for size in range(len(possible) + 1)
        for chosen in combinations(possible, size)
    }
    _require(
        witness.snapshot.usage in sums,
        "usage.adds_up",
        f"the calls reported {certain}"
        + (f" and perhaps some of {possible}" if possible else "")
        + f", the session says {witness.snapshot.usage}",
    )
    return int(certain.model_calls > 1)


def _turn_usage(turn: TurnWitness) -> tuple[AgentUsage, list[AgentUsage]]:
    """Return what the turn has used, and what was lost or counted when it failed."""
    steps = list(turn.steps.values())
    outcomes = [step.outcome for step in steps if step.outcome is not None]
    inside = [_usage(record["usage"]) for record in steps[-1].records.values()]
    used = [_usage(outcome["usage"]) for outcome in outcomes]
    if turn.is_completed:
        return AgentUsage.total([*used, *inside]), []
    # The turn failed: its last model call, and calls that finished without the model reading them,
    # may or may not have been stored before that.
    unsure = used[-1:] if steps[-1].outcome is not None else []
    sure = used[: len(used) - len(unsure)]
    return AgentUsage.total([*sure, *inside]), unsure


def _usage(facts: Any) -> AgentUsage:
    if facts is None:
        return AgentUsage()
    known = {field.name for field in fields(AgentUsage)}
    return AgentUsage(**{name: value for name, value in facts.items() if name in known})


# --- messages -----------------------------------------------------------------------------------


def _contiguous(witness: Witness) -> int:
    name = "messages.contiguous"
    state = witness.snapshot.state
    count = 0 if state is None else state.message_count
    _require(
        _sequences(witness.messages) == list(range(1, count + 1)),
        name,
        f"the state says {count} messages, the list has {_sequences(witness.messages)}",
    )
    for arrival in witness.arrivals:
        if arrival.name == "model.before":
            given = arrival.details["sequences"]
            _require(
                given == list(range(1, len(given) + 1)), name, f"a model call was given {given}"
            )
    return int(count > 1)


def _unchanged(witness: Witness) -> int:
    for _, messages in witness.looks:
        for before, after in zip(messages, witness.messages, strict=False):
            _require(
                before == after,
                "messages.unchanged",
                f"message {before.sequence} was {before} and is now {after}",
            )
        _require(len(messages) <= len(witness.messages), "messages.unchanged", "messages have gone")
    return sum(bool(messages) for _, messages in witness.looks)


def _known_ids(witness: Witness) -> int:
    name = "messages.known_ids_dropped"
    ids = [message_id for message_id, _ in witness.sent]
    stored = [
        message.message_id
        for message in witness.messages
        if message.role is MessageRole.USER and message.message_id
    ]
    _require(len(set(stored)) == len(stored), name, f"message ids are stored twice: {stored}")
    _require(
        stored == [message_id for message_id in ids if message_id in stored],
        name,
        f"messages were sent as {ids} and are stored as {stored}",
    )
    _require(
        witness.turn_count == len(ids),
        name,
        f"{len(ids)} messages were sent, but {witness.turn_count} turns have ended",
    )
    return witness.sent_again


def _sequences(messages: Iterable[AgentMessage]) -> list[int]:
    return [message.sequence for message in messages]


def _failure_noted(witness: Witness) -> int:
    checked = 0
    for turn in witness.turns():
        records = list(turn.steps.values())[-1].records
        if turn.is_completed or not records:
            continue
        # Its first message is the user's own.
        stored = [message for message in witness.messages if message.turn_id == turn.turn_id]
        _require(
            len(stored) > 1,
            "failures.noted",
            f"{turn.turn_id} failed after the calls {sorted(records)}, but no message tells it",
        )
        checked += 1
    return checked


# --- answers, events and the state --------------------------------------------------------------


def _answered_once(witness: Witness) -> int:
    _require(
        not any(witness.answered_again),
        "answers.once",
        "a question that had been answered took another answer",
    )
    return len(witness.answered_again)


def _events_consistent(witness: Witness) -> int:
    name = "events.consistent"
    completed = {turn.turn_id: turn.is_completed for turn in witness.turns()}
    ended: dict[str, set[AgentEventType]] = {}
    finished: dict[tuple[str, str], str] = {}
    for event in witness.events:
        if event.type in (AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED):
            ended.setdefault(event.turn_id, set()).add(event.type)
        if event.type is AgentEventType.TOOL_CALL_FINISHED:
            finished[event.turn_id, str(event.payload["tool_call_id"])] = str(
                event.payload["status"]
            )
    turns = [f"turn-{number}" for number in range(1, witness.turn_count + 1)]
    _require(
        sorted(ended) == sorted(turns), name, f"{turns} have ended, events tell of {list(ended)}"
    )
    for turn_id, types in ended.items():
        is_completed = completed.get(turn_id, False)
        wanted = AgentEventType.TURN_COMPLETED if is_completed else AgentEventType.TURN_FAILED
        _require(types == {wanted}, name, f"{turn_id} ended as {wanted}, events say {types}")
    for turn in witness.turns():
        for step in turn.steps.values():
            for call_id, record in step.records.items():
                told = finished.get((turn.turn_id, call_id), record["status"])
                _require(
                    told == record["status"],
                    name,
                    f"call {call_id!r} of {turn.turn_id} is {record['status']}, "
                    f"its last event says {told}",
                )
    # A question that is answered at once is not raised any more: nobody has to be told.
    resolved = {
        event.payload["interrupt_id"]
        for event in witness.events
        if event.type is AgentEventType.INTERRUPT_RESOLVED
    }
    _require(
        resolved >= set(witness.answered),
        name,
        f"questions {witness.answered} were answered, events tell of {sorted(map(str, resolved))}",
    )
    return len(turns)


def _settled(witness: Witness) -> int:
    snapshot, name = witness.snapshot, "state.settled"
    state = snapshot.state
    _require(state is not None, name, "the session has no state")
    assert state is not None
    _require(
        state.status is AgentStatus.WAITING_FOR_USER_MESSAGE and state.turn_id is None,
        name,
        f"every turn has ended, but the session says {state}",
    )
    left = (snapshot.pending_interrupts, snapshot.tool_calls, snapshot.queued_message_count)
    _require(left == ((), (), 0), name, f"every turn has ended, but this is left: {left}")
    turns = witness.turns()
    last_failed = (
        bool(turns)
        and turns[-1].turn_id == f"turn-{witness.turn_count}"
        and (not turns[-1].is_completed)
    )
    if turns and turns[-1].turn_id == f"turn-{witness.turn_count}":
        _require(
            (state.last_turn_error is not None) is last_failed,
            name,
            f"the last turn {'failed' if last_failed else 'completed'}, "
            f"but its error is {state.last_turn_error!r}",
        )
    return int(witness.turn_count > 0)


INVARIANTS: Final[tuple[Invariant, ...]] = (
    Invariant(
        "calls.one_record",
        "Every tool call that the model asked for has exactly one record.",
        "records that a model call was given",
        _one_record,
    ),
    Invariant(
        "calls.final_before_model",
        "Every record is final before the next model call.",
        "records that a model call was given",
        _final_before_model,
        judges_arrivals=True,
    ),
    Invariant(
        "effects.at_most_once",
        "A tool whose effect must not be repeated is started at most once a call.",
        "calls of such tools that were started",
        _at_most_once,
        judges_arrivals=True,
    ),
    Invariant(
        "usage.adds_up",
        "The usage of the session is the sum of what its model calls and tools reported.",
        "sessions with more than one model call",
        _usage_adds_up,
    ),
    Invariant(
        "messages.contiguous",
        "Messages are numbered from 1 without a gap, and as many as the state says.",
        "sessions with more than one message",
        _contiguous,
    ),
    Invariant(
        "messages.unchanged",
        "A message that was read once never changes.",
        "readings on the way that found messages",
        _unchanged,
    ),
    Invariant(
        "messages.known_ids_dropped",
        "A message id that is known is dropped; each id is one turn, in the order sent.",
        "messages sent again",
        _known_ids,
    ),
    Invariant(
        "failures.noted",
        "A turn that failed after tool calls leaves a message about them to the next one.",
        "turns that failed after tool calls",
        _failure_noted,
    ),
    Invariant(
        "answers.once",
        "A question takes one answer.",
        "answers to questions that were answered before",
        _answered_once,
    ),
    Invariant(
        "events.consistent",
        "What events tell of turns, calls and questions is what the session stores.",
        "turns that ended",
        _events_consistent,
    ),
    Invariant(
        "state.settled",
        "A session whose messages are all answered waits, with nothing left over.",
        "sessions that ended a turn",
        _settled,
    ),
)
