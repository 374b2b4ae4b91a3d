"""Plays the session for a runner, Step by Step, as the session Flow does, without an engine.

Between two Steps only stored values cross, encoded and decoded like in a real session, and every
Step may get a runner of its own, as after a restart. Each model Step must make at most one model
call, and no tool body may run inside one; both are checked on every call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from agents import Agent, Model, Usage
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from dex_agents import (
    AgentEvent,
    AgentEventWriter,
    AgentMessage,
    AgentToolCall,
    AgentTurnContext,
    AgentUsage,
    DeferredToolExecution,
    FrameworkMessage,
    ModelError,
    ToolCallsRequested,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionError,
    ToolPolicy,
    TurnCompleted,
    TurnContinues,
    TurnFailedError,
    build_turn_failure_note,
)
from dex_agents_openai_agents import OpenAIAgentsRunner

Answer = bool | str
"""`True` approves, `False` rejects without words, text rejects with these words."""


def call(name: str, call_id: str, /, **arguments: Any) -> Any:
    """A function call of a scripted response."""
    return function_call(name, arguments, call_id=call_id, item_id=f"fc_{call_id}")


def says(text: str, item_id: str = "msg_1") -> Any:
    """A text answer of a scripted response."""
    return assistant_message(text, item_id=item_id)


def response(*output: Any, tokens: int = 15) -> ModelStep:
    """A scripted response that reports its usage."""
    usage = Usage(requests=1, input_tokens=tokens - 5, output_tokens=5, total_tokens=tokens)
    return ModelStep(output=list(output), usage=usage)


def script(*steps: Sequence[Any] | Any) -> ScriptedModel:
    """A model that gives these responses, one after the other."""
    return ScriptedModel(steps)


@dataclass
class SteppedTurn:
    """What one turn did."""

    outcome: TurnCompleted | TurnFailedError | ModelError | Exception
    records: dict[str, AgentToolCall]
    model_steps: int
    usage: AgentUsage
    state_sizes: list[int]
    kinds: list[str]

    @property
    def messages(self) -> tuple[FrameworkMessage, ...]:
        """The new messages of a completed turn."""
        if not isinstance(self.outcome, TurnCompleted):
            raise self.outcome
        return self.outcome.new_messages

    @property
    def text(self) -> str:
        """The answer."""
        return self.messages[-1].text if self.messages else ""

    @property
    def failure(self) -> TurnFailedError:
        """The error of a turn that failed for good."""
        assert isinstance(self.outcome, TurnFailedError), self.outcome
        return self.outcome


@dataclass
class SteppedSession:
    """One session.

    Attributes:
        make_runner: Called for every Step.
        models: Models whose calls are counted.
        policies: Explicit tool policies.
        default_effect: Effect of tools without a policy.
        answer: Answers approvals, by record.
        body_runs: Counts real tool bodies, to check that none runs inside a model Step.
    """

    make_runner: Callable[[], OpenAIAgentsRunner]
    models: Sequence[Model] = ()
    policies: dict[str, ToolPolicy] = field(default_factory=dict[str, ToolPolicy])
    default_effect: ToolEffect = ToolEffect.READ
    answer: Callable[[AgentToolCall], Answer] = lambda _record: True
    body_runs: Callable[[], int] = lambda: 0
    session_id: str = "session-1"
    messages: list[AgentMessage] = field(default_factory=list[AgentMessage])
    events: list[AgentEvent] = field(default_factory=list[AgentEvent])
    asked: list[str] = field(default_factory=list[str])
    turn_count: int = 0
    before_resume: Callable[[str, dict[str, AgentToolCall]], str] = lambda state, _records: state

    async def turn(self, text: str) -> SteppedTurn:
        """Send a user message and play the turn to its end."""
        self.turn_count += 1
        turn_id = f"turn-{self.turn_count}"
        self._store(turn_id, [self.make_runner().build_user_message(text)])
        records: dict[str, AgentToolCall] = {}
        turn = SteppedTurn(RuntimeError("not ended"), records, 0, AgentUsage(), [], [])
        state: str | None = None
        while True:
            calls_before = self._model_calls()
            bodies_before = self.body_runs()
            turn.model_steps += 1
            events = self._writer(turn_id)
            try:
                outcome = await self.make_runner().run_model_step(
                    AgentTurnContext(
                        flow_id=self.session_id,
                        turn_id=turn_id,
                        attempt=1,
                        messages=tuple(self.messages),
                        framework_run_state=state,
                        tool_calls=dict(records),
                        events=events,
                        heartbeat=_no_heartbeat,
                        tool_policies=self.policies,
                        default_tool_effect=self.default_effect,
                    )
                )
            except Exception as error:
                turn.outcome = error
                if records:
                    note = build_turn_failure_note(records.values())
                    self._store(turn_id, [self.make_runner().build_user_message(note)])
                return turn
            finally:
                events.close()
                assert self._model_calls() - calls_before <= 1, "one model call per model Step"
                assert self.body_runs() == bodies_before, "no tool body in a model Step"
            turn.usage += outcome.usage
            turn.kinds.append(type(outcome).__name__)
            if isinstance(outcome, TurnCompleted):
                turn.outcome = outcome
                self._store(turn_id, outcome.new_messages)
                return turn
            turn.state_sizes.append(len(outcome.framework_run_state))
            if isinstance(outcome, ToolCallsRequested):
                assert outcome.tool_calls
                for deferred in outcome.tool_calls:
                    assert deferred.tool_call_id not in records, "ids are unique within a turn"
                    assert "/" not in deferred.tool_call_id
                    records[deferred.tool_call_id] = AgentToolCall(
                        tool_call_id=deferred.tool_call_id,
                        turn_id=turn_id,
                        tool_name=deferred.tool_name,
                        arguments=deferred.arguments,
                        effect=deferred.policy.effect,
                        requires_approval=deferred.is_approval_required,
                        deferral_order=len(records),
                        framework_payload=deferred.framework_payload,
                    )
                pending = [c.tool_call_id for c in outcome.tool_calls]
                done = await asyncio.gather(*(self._run_tool(records[c]) for c in pending))
                records.update(zip(pending, done, strict=True))
                turn.usage = AgentUsage.total([turn.usage, *(record.usage for record in done)])
            else:
                assert isinstance(outcome, TurnContinues)
            state = self.before_resume(outcome.framework_run_state, records)

    async def _run_tool(self, record: AgentToolCall) -> AgentToolCall:
        if record.requires_approval:
            self.asked.append(record.tool_call_id)
            answer = self.answer(record)
            if answer is not True:
                return replace(
                    record, status=ToolCallStatus.REJECTED, rejection_message=answer or None
                )
            record = replace(record, status=ToolCallStatus.APPROVED)
        attempts = 3 if record.effect.is_repeatable else 1
        error = "?"
        for attempt in range(1, attempts + 1):
            execution = DeferredToolExecution(
                flow_id=self.session_id,
                tool_call=record,
                idempotency_key=f"{self.session_id}/{record.turn_id}/{record.tool_call_id}",
                attempt=attempt,
                events=self._writer(record.turn_id),
                heartbeat=_no_heartbeat,
            )
            try:
                result = await self.make_runner().execute_deferred_tool_call(execution)
            except ToolExecutionError as failure:
                return replace(
                    record,
                    status=ToolCallStatus.FAILED,
                    error=failure.message,
                    framework_payload=failure.framework_payload or record.framework_payload,
                )
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
                continue
            return replace(
                record,
                status=ToolCallStatus.SUCCEEDED,
                output=result.output,
                framework_payload=result.framework_payload or record.framework_payload,
                usage=result.usage,
            )
        status = (
            ToolCallStatus.FAILED
            if record.effect is ToolEffect.READ
            else ToolCallStatus.OUTCOME_UNKNOWN
        )
        return replace(record, status=status, error=error)

    def _store(self, turn_id: str, new: Iterable[FrameworkMessage]) -> None:
        for message in new:
            self.messages.append(
                AgentMessage(
                    sequence=len(self.messages) + 1,
                    turn_id=turn_id,
                    role=message.role,
                    text=message.text,
                    framework_item=message.framework_item,
                    created_at=datetime.now(UTC),
                    agent_name=message.agent_name,
                )
            )

    def _model_calls(self) -> int:
        return sum(len(model._calls) for model in self.models if isinstance(model, ScriptedModel))

    def _writer(self, turn_id: str) -> AgentEventWriter:
        return AgentEventWriter(
            self.events.append,
            turn_id=turn_id,
            step_execution_id="step",
            attempt=1,
            delta_interval=0,
        )

    def live_text(self, kind: str = "text_delta") -> str:
        """Text that was streamed, of one kind of event."""
        return "".join(str(e.payload["text"]) for e in self.events if e.type == kind)


async def _no_heartbeat() -> None:
    return None


def session_of(
    agent: Agent[Any],
    *,
    models: Sequence[Model] | None = None,
    policies: dict[str, ToolPolicy] | None = None,
    default_effect: ToolEffect = ToolEffect.READ,
    answer: Callable[[AgentToolCall], Answer] = lambda _record: True,
    body_runs: Callable[[], int] = lambda: 0,
    before_resume: Callable[[str, dict[str, AgentToolCall]], str] = lambda state, _records: state,
    **runner_options: Any,
) -> SteppedSession:
    """A session of one agent; every Step gets a runner of its own."""
    own_model = [agent.model] if isinstance(agent.model, Model) else []
    return SteppedSession(
        lambda: OpenAIAgentsRunner(agent, **runner_options),
        own_model if models is None else models,
        policies=policies or {},
        default_effect=default_effect,
        answer=answer,
        body_runs=body_runs,
        before_resume=before_resume,
    )


def outputs(items: Sequence[Any]) -> list[Any]:
    """The tool outputs in a model input, in order."""
    return [item["output"] for item in items if item.get("type") == "function_call_output"]


def as_text(items: Sequence[Any]) -> list[str]:
    """Items as text that does not depend on the order of keys."""
    return [json.dumps(item, sort_keys=True) for item in items]


def assert_every_call_has_one_output(items: Sequence[Any]) -> None:
    """Check model input as a provider does: each call once, each output once, in that order."""
    open_calls: set[str] = set()
    seen: set[str] = set()
    for item in items:
        kind, call_id = item.get("type"), item.get("call_id")
        if kind == "function_call":
            assert call_id not in seen, f"call {call_id} twice"
            seen.add(call_id)
            open_calls.add(call_id)
        elif kind == "function_call_output":
            assert call_id in open_calls, f"output {call_id} without its call"
            open_calls.remove(call_id)
    assert not open_calls, f"calls without output: {open_calls}"
