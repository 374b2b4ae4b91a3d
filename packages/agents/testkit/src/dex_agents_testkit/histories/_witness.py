"""What was done to one session and what was seen of it: all that the invariants judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dex_agents.testing import Invocation, StepHistoryEntry
from dex_agents.values import AgentEvent, AgentMessage, AgentSnapshot, MessageRole


@dataclass(slots=True)
class Witness:
    """One session, from its first message to its end.

    Attributes:
        session_id: The session.
        sent: Ids and texts of the messages that were accepted, in order.
        sent_again: How often a known message id was sent again.
        answered: Ids of the questions that were answered, in order.
        answered_again: What came of answers to questions that had been answered before.
        looks: States and messages that were read on the way, in order.
        snapshot: The session at its end.
        messages: All its messages.
        events: All its events up to the end of its last turn.
        steps: Its ended Steps.
        arrivals: Arrivals at places of the worker on its behalf.
    """

    session_id: str
    sent: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    sent_again: int = 0
    answered: list[str] = field(default_factory=list[str])
    answered_again: list[bool] = field(default_factory=list[bool])
    looks: list[tuple[AgentSnapshot, tuple[AgentMessage, ...]]] = field(
        default_factory=list[tuple[AgentSnapshot, tuple[AgentMessage, ...]]]
    )
    snapshot: AgentSnapshot = field(default_factory=AgentSnapshot)
    messages: tuple[AgentMessage, ...] = ()
    events: list[AgentEvent] = field(default_factory=list[AgentEvent])
    steps: Sequence[StepHistoryEntry] = ()
    arrivals: Sequence[Invocation] = ()

    @property
    def turn_count(self) -> int:
        """Turns that have ended."""
        return 0 if self.snapshot.state is None else self.snapshot.state.turn_count

    def turns(self) -> list[TurnWitness]:
        """Return what the worker noted of each turn that made a model call, in order."""
        found: dict[str, TurnWitness] = {}
        for arrival in self.arrivals:
            name = arrival.name
            if name not in ("model.before", "model.after"):
                continue
            facts = arrival.details
            turn = found.setdefault(facts["turn_id"], TurnWitness(facts["turn_id"]))
            step = turn.steps.setdefault(facts["step"], StepWitness())
            if name == "model.before":
                step.given.append(facts)
            elif "outcome" in facts:
                # Of several attempts the last one is the one that was stored.
                step.outcome = facts
        told = {
            message.turn_id for message in self.messages if message.role is not MessageRole.USER
        }
        for turn in found.values():
            # A failed turn leaves its user message and a note, which has that role too.
            turn.is_completed = turn.turn_id in told
        return list(found.values())

    def describe(self) -> str:
        """Return what is known of the session as text, for the message of a failure."""
        lines = [f"  {self.snapshot.state}"]
        for arrival in self.arrivals:
            facts = arrival.details
            shown = ("turn_id", "tool_call_id", "attempt", "outcome", "raised")
            told = " ".join(str(facts[name]) for name in shown if name in facts)
            lines.append(f"  {arrival.recorded_at:.2f} {arrival.process_id} {arrival.name} {told}")
        lines += [
            f"  {entry.step_type} {entry.event_type} attempt {entry.final_attempt} "
            f"{entry.step_input} {entry.last_failure}"
            for entry in self.steps
        ]
        return "\n".join(lines)


@dataclass(slots=True)
class StepWitness:
    """One model Step: what each attempt was given, and what the last one returned."""

    given: list[Any] = field(default_factory=list[Any])
    outcome: Any = None

    @property
    def records(self) -> dict[str, Any]:
        """Records of tool calls that its last attempt was given, by call id."""
        return self.given[-1]["records"] if self.given else {}

    @property
    def calls(self) -> list[str]:
        """Ids of the tool calls it asked for."""
        return [] if self.outcome is None else list(self.outcome.get("calls", ()))


@dataclass(slots=True)
class TurnWitness:
    """One turn.

    Attributes:
        turn_id: Its id.
        steps: Its model Steps, in order.
        is_completed: Whether the session stores an answer of it.
    """

    turn_id: str
    steps: dict[str, StepWitness] = field(default_factory=dict[str, StepWitness])
    is_completed: bool = False
