"""Plays a session for a runner Step by Step, as the session Flow does, without an engine.

Between two Steps only stored values cross, encoded and decoded as in a real session. What every
Step must keep is checked at every Step, under the id of the requirement that says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar, cast

from dex_agents import AgentEventWriter
from dex_agents.codecs import ValueCodec
from dex_agents.errors import ToolExecutionError
from dex_agents.runner import (
    AgentFrameworkRunner,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolCall,
    DeferredToolExecution,
    FrameworkMessage,
    ToolCallsRequested,
    ToolPolicy,
    TurnCompleted,
    TurnContinues,
)
from dex_agents.values import (
    AgentEvent,
    AgentEventType,
    AgentMessage,
    AgentToolCall,
    MessageRole,
    ToolCallStatus,
    ToolEffect,
)
from dex_agents_testkit.conformance._scenario import ModelReply
from dex_agents_testkit.conformance._stage import Stage, WatchedStep, Witness

SESSION_ID = "conformance"

T = TypeVar("T")


class RequirementBrokenError(AssertionError):
    """A runner breaks a requirement.

    Attributes:
        requirement_id: Which one.
    """

    def __init__(self, requirement_id: str, message: str) -> None:
        super().__init__(f"[{requirement_id}] {message}")
        self.requirement_id = requirement_id


def require(holds: object, requirement_id: str, message: str) -> None:
    """Raise unless something holds.

    Raises:
        RequirementBrokenError: It does not.
    """
    if not holds:
        raise RequirementBrokenError(requirement_id, message)


@dataclass
class PlayedSession:
    """One session, played turn by turn.

    Attributes:
        witness: Sees what happens, and knows the scenario.
        make_runner: Makes a runner on the stage.
        policies: Explicit tool policies.
        default_effect: Effect of a tool without policy or hint.
        is_moving: Every Step gets a runner of its own, as after a restart.
    """

    witness: Witness
    make_runner: Callable[[Stage], AgentFrameworkRunner]
    policies: Mapping[str, ToolPolicy] = field(default_factory=dict[str, ToolPolicy])
    default_effect: ToolEffect = ToolEffect.READ
    is_moving: bool = False
    turn_number: int = 0
    user_text: str = ""
    messages: list[AgentMessage] = field(default_factory=list[AgentMessage])
    records: dict[str, AgentToolCall] = field(default_factory=dict[str, AgentToolCall])
    run_state: str | None = None
    streamed: str = ""
    reply_count: int = 0
    _runner: AgentFrameworkRunner | None = None

    @property
    def turn_id(self) -> str:
        return f"turn-{self.turn_number}"

    @property
    def step(self) -> WatchedStep:
        """The model Step that ran last."""
        return self.witness.model_steps[-1]

    @property
    def model_input(self) -> str:
        """What the model was given in the Step that ran last."""
        return "\n".join(self.step.model_calls)

    def runner(self) -> AgentFrameworkRunner:
        """Return the runner for the next Step."""
        if self._runner is None or self.is_moving:
            self._runner = self.witness.watch(self.make_runner(self.witness.stage))
        return self._runner

    def say(self, text: str) -> FrameworkMessage:
        """Begin a turn with a user message."""
        self.turn_number += 1
        self.records, self.run_state, self.reply_count = {}, None, 0
        self.user_text = text
        message = self.runner().build_user_message(text)
        require(message.role == MessageRole.USER, "user_message.role", f"its role: {message.role}")
        self._store([message])
        return message

    async def attempt(self, attempt: int = 1) -> AgentTurnOutcome:
        """Run the next model Step and keep nothing of it."""
        events: list[AgentEvent] = []
        writer = AgentEventWriter(
            events.append,
            turn_id=self.turn_id,
            step_execution_id=f"RunModel-{len(self.witness.model_steps)}",
            attempt=attempt,
            delta_interval=0,
        )
        turn = AgentTurnContext(
            flow_id=SESSION_ID,
            turn_id=self.turn_id,
            attempt=attempt,
            messages=tuple(self.messages),
            framework_run_state=self.run_state,
            tool_calls=dict(self.records),
            events=writer,
            heartbeat=_no_heartbeat,
            tool_policies=self.policies,
            default_tool_effect=self.default_effect,
        )
        runner = self.runner()
        try:
            outcome = await runner.run_model_step(turn)
        finally:
            writer.close()
            self.streamed = "".join(
                str(event.payload["text"])
                for event in events
                if event.type is AgentEventType.TEXT_DELTA
            )
            self._check_model_step()
        self._check_outcome(outcome)
        return outcome

    async def model_step(self) -> AgentTurnOutcome:
        """Run the next model Step and store what it returns."""
        outcome = await self.attempt()
        self.reply_count += 1
        match outcome:
            case TurnCompleted():
                self._check_items(outcome.new_messages)
                self._store(outcome.new_messages)
            case TurnContinues():
                self.run_state = outcome.framework_run_state
            case ToolCallsRequested():
                self.run_state = outcome.framework_run_state
                for call in outcome.tool_calls:
                    self._defer(call)
        return outcome

    async def ask_for_tools(self) -> ToolCallsRequested:
        """Run the next model Step, which has to ask for tools."""
        outcome = await self.model_step()
        require(
            isinstance(outcome, ToolCallsRequested),
            "tools.arguments",
            f"the model asked for tools, but the Step returned {type(outcome).__name__}",
        )
        return cast(ToolCallsRequested, outcome)

    async def run_tool(self, tool_call_id: str) -> AgentToolCall:
        """Run a deferred call and store its result.

        Raises:
            Exception: What the runner raised, unless it is a `ToolExecutionError`.
        """
        record = self.records[tool_call_id]
        if record.requires_approval:
            record = replace(record, status=ToolCallStatus.APPROVED)
        call = DeferredToolExecution(
            flow_id=SESSION_ID,
            tool_call=_stored(record),
            idempotency_key=f"{SESSION_ID}/{self.turn_id}/{tool_call_id}",
            attempt=1,
            events=AgentEventWriter(
                _ignore_event, turn_id=self.turn_id, step_execution_id="CallTool-1", attempt=1
            ),
            heartbeat=_no_heartbeat,
        )
        known = len(self.witness.tool_steps)
        try:
            result = await self.runner().execute_deferred_tool_call(call)
        except ToolExecutionError as error:
            done = replace(
                record,
                status=ToolCallStatus.FAILED,
                error=error.message,
                framework_payload=error.framework_payload or record.framework_payload,
            )
        else:
            done = replace(
                record,
                status=ToolCallStatus.SUCCEEDED,
                output=result.output,
                framework_payload=result.framework_payload or record.framework_payload,
                usage=result.usage,
            )
        finally:
            call.events.close()
            for step in self.witness.tool_steps[known:]:
                _check_tool_step(step)
        self.records[tool_call_id] = _stored(done)
        return self.records[tool_call_id]

    def settle(self, tool_call_id: str, status: ToolCallStatus, text: str) -> None:
        """Give a deferred call a final record without running it."""
        record = self.records[tool_call_id]
        changed = (
            replace(record, status=status, rejection_message=text)
            if status is ToolCallStatus.REJECTED
            else replace(record, status=status, error=text)
        )
        self.records[tool_call_id] = _stored(changed)

    async def play(self, text: str) -> tuple[FrameworkMessage, ...]:
        """Play a whole turn; every tool call is run. Return its new messages."""
        self.say(text)
        for _ in range(len(self.witness.scenario.turns[self.turn_number - 1]) + 1):
            outcome = await self.model_step()
            if isinstance(outcome, TurnCompleted):
                return outcome.new_messages
            if isinstance(outcome, ToolCallsRequested):
                for call in outcome.tool_calls:
                    await self.run_tool(call.tool_call_id)
        raise RequirementBrokenError("model.outcome", f"{self.turn_id} does not end")

    def _replies(self) -> tuple[ModelReply, ...]:
        """What the model said so far in this turn."""
        return self.witness.scenario.turns[self.turn_number - 1][: self.reply_count]

    def _store(self, messages: Iterable[FrameworkMessage]) -> None:
        for message in messages:
            try:
                json.loads(message.framework_item)
            except (TypeError, ValueError):
                raise RequirementBrokenError(
                    "items.json", f"this item is no JSON text: {message.framework_item!r:.200}"
                ) from None
            stored = AgentMessage(
                len(self.messages) + 1,
                self.turn_id,
                message.role,
                message.text,
                message.framework_item,
                datetime.now(UTC),
                "",
                message.agent_name,
            )
            self.messages.append(_stored(stored))

    def _defer(self, call: DeferredToolCall) -> None:
        record = AgentToolCall(
            call.tool_call_id,
            self.turn_id,
            call.tool_name,
            call.arguments,
            call.policy.effect,
            call.is_approval_required,
            len(self.records),
            framework_payload=call.framework_payload,
        )
        self.records[call.tool_call_id] = _stored(record)

    def _check_model_step(self) -> None:
        calls, runs = len(self.step.model_calls), self.step.tool_runs
        require(calls <= 1, "model.one_call", f"one model Step made {calls} model calls")
        require(
            not runs, "model.no_tool_run", f"a model Step ran {[run.tool_name for run in runs]}"
        )

    def _check_outcome(self, outcome: object) -> None:
        if isinstance(outcome, TurnCompleted):
            return
        require(
            isinstance(outcome, ToolCallsRequested | TurnContinues),
            "model.outcome",
            f"a model Step returned {type(outcome).__name__}",
        )
        going_on = cast("ToolCallsRequested | TurnContinues", outcome)
        state = cast(object, going_on.framework_run_state)
        require(
            isinstance(state, str) and state,
            "state.not_empty",
            f"the run state is {state!r}",
        )
        if isinstance(going_on, ToolCallsRequested):
            require(going_on.tool_calls, "model.outcome", "ToolCallsRequested has no tool calls")
            self._check_ids([call.tool_call_id for call in going_on.tool_calls])
            self._check_calls(going_on.tool_calls)

    def _check_ids(self, new: list[str]) -> None:
        seen = set(self.records)
        for tool_call_id in new:
            usable = tool_call_id.strip() and "/" not in tool_call_id
            require(usable, "tools.ids", f"the session cannot use the id {tool_call_id!r}")
            require(
                tool_call_id not in seen,
                "tools.ids",
                f"the id {tool_call_id!r} is used twice in {self.turn_id}",
            )
            seen.add(tool_call_id)

    def _check_calls(self, calls: tuple[DeferredToolCall, ...]) -> None:
        """Check what is deferred against what the model asked for."""
        replies = self.witness.scenario.turns[self.turn_number - 1]
        reply = replies[min(self.reply_count, len(replies) - 1)]
        wanted = [(call.tool_name, {"key": call.key}) for call in reply.tool_calls]
        got = [(call.tool_name, _parsed(call.arguments)) for call in calls]
        is_complete = len(got) == len(wanted) and all(call in got for call in wanted)
        told = f"the model asked for {wanted}; deferred were {got}"
        require(is_complete, "tools.arguments", told)
        require(got == wanted, "tools.order", told)

    def _check_items(self, messages: tuple[FrameworkMessage, ...]) -> None:
        """Check what a turn leaves behind against what happened in it."""
        require(
            not _places(messages, self.user_text),
            "items.after_user_message",
            "the user's message is among the new messages",
        )
        results = {
            str(json.loads(record.arguments)["key"]): record for record in self.records.values()
        }
        end_of_last_reply = -1
        for reply in self._replies():
            texts = [reply.text] if reply.text else []
            places = [_place(messages, text) for text in texts]
            for call in reply.tool_calls:
                request = _place(messages, call.key)
                result = _place(messages, _result_text(results[call.key]))
                require(request <= result, "items.order", f"{call.key!r}: a result before its call")
                places += [request, result]
            if places:
                require(
                    min(places) >= end_of_last_reply,
                    "items.order",
                    f"an item of {reply.text or reply.tool_calls!r} stands before earlier ones",
                )
                end_of_last_reply = max(places)


def _place(messages: tuple[FrameworkMessage, ...], text: str) -> int:
    found = _places(messages, text)
    require(found, "items.complete", f"no item of the turn holds {text!r}")
    require(len(found) == 1, "items.no_repeats", f"{len(found)} items hold {text!r}")
    return found[0]


def _places(messages: tuple[FrameworkMessage, ...], text: str) -> list[int]:
    return [n for n, message in enumerate(messages) if text in message.framework_item]


def _parsed(arguments: object) -> object:
    try:
        return json.loads(cast(str, arguments))
    except (TypeError, ValueError):
        return arguments


def _result_text(record: AgentToolCall) -> str:
    return record.output or record.rejection_message or record.error or ""


def _check_tool_step(step: WatchedStep) -> None:
    runs = len(step.tool_runs)
    require(runs <= 1, "tool_step.runs_once", f"one tool Step ran tools {runs} times")
    require(not step.model_calls, "tool_step.no_model_call", "a tool Step asked the model")


def _stored(value: T) -> T:
    """Return a value as it comes back from the store."""
    codec = ValueCodec(type(value))  # pyright: ignore[reportArgumentType, reportUnknownVariableType] - called with stored values only
    return cast(T, codec.decode(codec.encode(value)))  # pyright: ignore[reportArgumentType, reportUnknownMemberType] - the same


def _ignore_event(_event: AgentEvent) -> None:
    return None


async def _no_heartbeat() -> None:
    return None
