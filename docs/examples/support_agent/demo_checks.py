"""What the demo claims, checked against what really happened."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shop import Shop

from dex_agents import AgentMessage, AgentSnapshot, AgentState, MessageRole
from dex_agents.testing import EXECUTE_COMPLETED_EVENT, ChildProcess, StepHistoryEntry
from dex_agents_testkit.model_server import RecordedRequest, read_recorded_requests


@dataclass(frozen=True)
class Check:
    """One claim and whether it held."""

    claim: str
    held: bool
    detail: str = ""


@dataclass(frozen=True)
class SessionBefore:
    """What a session held before this run of the demo."""

    messages: Sequence[AgentMessage]
    state: AgentState | None


@dataclass
class TurnRecord:
    """What was seen while the turn ran.

    Attributes:
        session_id: The session.
        before: What it held before this run; None for a new session.
        worker: The worker that began the turn.
        kill_wanted: Whether the worker was to be killed.
        killed_call: Key of the look-up in which the worker was killed.
        approved: Keys of the refunds that a person approved.
        rejected: Keys of the refunds that a person rejected.
    """

    session_id: str
    before: SessionBefore | None
    worker: ChildProcess
    kill_wanted: bool
    killed_call: str | None = None
    approved: set[str] = field(default_factory=set[str])
    rejected: set[str] = field(default_factory=set[str])

    @property
    def turn_number(self) -> int:
        """Number of the turn, from 1."""
        state = self.before.state if self.before else None
        return 1 if state is None else state.turn_count + 1

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier run of the demo ended in the middle of this turn."""
        state = self.before.state if self.before else None
        return state is not None and state.turn_id is not None

    @property
    def earlier(self) -> Sequence[AgentMessage]:
        """Messages of the turns before this one."""
        messages = self.before.messages if self.before else ()
        return [message for message in messages if message.turn_id != f"turn-{self.turn_number}"]

    @property
    def key_prefix(self) -> str:
        """What the idempotency keys of this turn begin with."""
        return f"{self.session_id}/turn-{self.turn_number}/"


def check_turn(
    turn: TurnRecord,
    snapshot: AgentSnapshot,
    steps: Sequence[StepHistoryEntry],
    shop: Shop,
    requests: Sequence[RecordedRequest] | None,
) -> list[Check]:
    """Check every claim of the demo.

    Args:
        turn: What was seen.
        snapshot: The session after the turn.
        steps: History of this turn.
        shop: The shop, whose files tell what was really done.
        requests: What the scripted model received during this turn; None for a real model.
    """
    checks = [_answered(snapshot)]
    if turn.kill_wanted and not (turn.is_resumed and turn.killed_call is None):
        checks.append(_killed(turn, steps, shop))
    checks += _refunds(turn, shop)
    if requests is not None:
        checks.append(_one_call_per_step(steps, requests))
        if turn.earlier:
            checks.append(_remembered(turn, requests))
    return checks


def requests_since(path: Path, sequence: int) -> list[RecordedRequest]:
    """Read the requests that came after the one with this number."""
    return [request for request in read_recorded_requests(path) if request.sequence > sequence]


def refunds_of(session_id: str, shop: Shop) -> list[dict[str, object]]:
    """Return the refunds in the shop's log that this session caused."""
    return [refund for refund in shop.refunds() if refund["key"].startswith(f"{session_id}/")]


def _answered(snapshot: AgentSnapshot) -> Check:
    state = snapshot.state
    if state is None:
        return Check("the turn ended with an answer", False, "the session has no state")
    if state.last_turn_error is not None:
        return Check("the turn ended with an answer", False, state.last_turn_error)
    last = snapshot.messages[-1] if snapshot.messages else None
    answered = last is not None and last.role is MessageRole.ASSISTANT and bool(last.text)
    return Check("the turn ended with an answer", answered, "" if answered else "no answer stored")


def _killed(turn: TurnRecord, steps: Sequence[StepHistoryEntry], shop: Shop) -> Check:
    claim = "the worker was killed inside the look-up, and the call ran again"
    if turn.killed_call is None:
        return Check(claim, False, "the model never asked for a look-up")
    notes = [note for note in shop.look_ups() if note["key"] == turn.killed_call]
    started = [note["pid"] for note in notes if note["phase"] == "started"]
    finished = [note["pid"] for note in notes if note["phase"] == "finished"]
    call_id = turn.killed_call.rpartition("/")[2]
    attempts = [
        entry.final_attempt
        for entry in steps
        if entry.event_type == EXECUTE_COMPLETED_EVENT
        and entry.step_type == "CallTool"
        and entry.step_input == call_id
    ]
    held = (
        turn.worker.returncode == -signal.SIGKILL
        # Not always the first: the worker of an interrupted run may have tried the call before.
        and turn.worker.pid in started[:-1]
        and turn.worker.pid not in finished
        and len(finished) == 1
        and len(attempts) == 1
        and attempts[0] > 1
    )
    detail = f"process {turn.worker.pid}, code {turn.worker.returncode}, attempts {attempts}"
    return Check(claim, held, detail)


def _refunds(turn: TurnRecord, shop: Shop) -> list[Check]:
    """Compare answers of the person with the shop's own log."""
    made = [str(refund["key"]) for refund in refunds_of(turn.session_id, shop)]
    checks = [
        Check("the approved refund ran exactly once", made.count(key) == 1, f"key {key}")
        for key in sorted(turn.approved)
    ]
    checks += [
        Check("the rejected refund did not run", key not in made, f"key {key}")
        for key in sorted(turn.rejected)
    ]
    if turn.earlier:
        repeated = len(made) - len(set(made))
        checks.append(Check("no refund of this session ran twice", repeated == 0))
    elif not checks:
        checks.append(Check("a refund ran once", False, "the model never asked for a refund"))
    return checks


def _one_call_per_step(
    steps: Sequence[StepHistoryEntry], requests: Sequence[RecordedRequest]
) -> Check:
    attempts = sum(
        entry.final_attempt
        for entry in steps
        if entry.step_type == "RunModel" and entry.event_type == EXECUTE_COMPLETED_EVENT
    )
    made_twice = sum(request.try_number > 1 for request in requests)
    # Not equal: a RunModel may hand itself on to load history, without calling the model.
    held = made_twice == 0 and len(requests) <= attempts
    return Check(
        "each model call was a Step of its own, and none was made twice",
        held,
        f"{len(requests)} requests reached the model, RunModel made {attempts} attempts",
    )


def _remembered(turn: TurnRecord, requests: Sequence[RecordedRequest]) -> Check:
    claim = "the model was sent the earlier conversation"
    if not requests:
        return Check(claim, False, "the model was not asked")
    sent = [item.text for item in requests[-1].conversation.items]
    missing = [
        message.text
        for message in turn.earlier
        if message.text and message.role is not MessageRole.TOOL and message.text not in sent
    ]
    remembered = f"{len(turn.earlier)} earlier messages are in its recorded input"
    detail = remembered if not missing else f"missing: {missing[0]!r}"
    return Check(claim, not missing, detail)
