"""Where a scenario is played: the doubles of an adapter come here for answers.

The stage knows by itself which Step is running, so the doubles keep no count. Behind it stands the
witness: what it saw, and not what the runner says, decides how often a model was called and a tool
was run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import cast

from dex_agents.errors import ToolExecutionError
from dex_agents.runner import (
    AgentFrameworkRunner,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    FrameworkMessage,
    ToolCallsRequested,
    ToolExecutionResult,
    TurnContinues,
)
from dex_agents_testkit.conformance._scenario import ModelReply, Scenario, ScenarioTool


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One run of a tool, as the stage saw it."""

    tool_name: str
    key: str
    idempotency_key: str | None


@dataclass(slots=True)
class WatchedStep:
    """What the stage saw of one Step.

    Attributes:
        turn: Number of the turn, from 1.
        reply: Which reply of the turn comes next, from 0.
        attempt: Attempt of the Step.
        model_calls: What each model call was given, as text.
        tool_runs: The tools that ran.
    """

    turn: int
    reply: int
    attempt: int
    model_calls: list[str] = field(default_factory=list[str])
    tool_runs: list[ToolRun] = field(default_factory=list[ToolRun])


_running: ContextVar[WatchedStep | None] = ContextVar("conformance_step", default=None)


class Witness:
    """Sees what happens on a stage, Step by Step.

    Attributes:
        scenario: What is played.
        stage: What the doubles of the adapter talk to.
        model_steps: Every model Step so far.
        tool_steps: Every tool Step so far.
        model_was_called: Set when a model call has begun.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.stage = Stage(self)
        self.model_steps: list[WatchedStep] = []
        self.tool_steps: list[WatchedStep] = []
        self.model_was_called = asyncio.Event()
        self._open: list[WatchedStep] = []
        self._replies: dict[tuple[str, str, str], int] = {}

    @property
    def tool_runs(self) -> tuple[ToolRun, ...]:
        """Every run of a tool so far."""
        return tuple(
            run for step in (*self.model_steps, *self.tool_steps) for run in step.tool_runs
        )

    def current_step(self) -> WatchedStep:
        """Return the Step in which this is called.

        Raises:
            RuntimeError: No Step is running, or it cannot be told which one.
        """
        step = _running.get()
        if step is not None:
            return step
        # A framework with threads of its own may lose the context; one open Step is enough then.
        if len(self._open) == 1:
            return self._open[0]
        raise RuntimeError(
            "a model or a tool was used outside of a Step, or in a thread without the context of "
            "its Step; start threads with asyncio.to_thread or contextvars.copy_context"
        )

    def watch(self, runner: AgentFrameworkRunner) -> WatchedRunner:
        """Return a runner that does what `runner` does and is watched from here."""
        return WatchedRunner(self, runner)

    @contextmanager
    def model_step(self, turn: AgentTurnContext) -> Generator[WatchedStep]:
        """Watch a model Step while the block runs."""
        reply = 0 if turn.framework_run_state is None else self._replies.get(_place(turn), 0)
        step = WatchedStep(_turn_number(turn.turn_id), reply, turn.attempt)
        self.model_steps.append(step)
        with self._watching(step):
            yield step

    @contextmanager
    def tool_step(self, call: DeferredToolExecution) -> Generator[WatchedStep]:
        """Watch a tool Step while the block runs."""
        step = WatchedStep(_turn_number(call.tool_call.turn_id), 0, call.attempt)
        self.tool_steps.append(step)
        with self._watching(step):
            yield step

    def note_outcome(self, turn: AgentTurnContext, step: WatchedStep, outcome: object) -> None:
        """Remember which reply comes after this outcome."""
        if isinstance(outcome, ToolCallsRequested | TurnContinues):
            place = (turn.flow_id, turn.turn_id, outcome.framework_run_state)
            self._replies[place] = step.reply + 1

    @contextmanager
    def _watching(self, step: WatchedStep) -> Generator[None]:
        self._open.append(step)
        token = _running.set(step)
        try:
            yield
        finally:
            _running.reset(token)
            self._open.remove(step)


class Stage:
    """What the doubles of an adapter talk to."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    @property
    def scenario(self) -> Scenario:
        """What is played."""
        return self._witness.scenario

    async def call_model(self, given: object = None) -> ModelReply:
        """Answer a model call; for the model double.

        Args:
            given: Everything of the conversation that the model is given, each piece once: text,
                or lists and mappings of text. Needed for `Ability.MODEL_INPUT`.

        Returns:
            The answer. If it has a `failure`, raise what the framework raises for that.
        """
        reply = self.record_model_call(given)
        if reply.never_answers:
            await asyncio.Event().wait()
        return reply

    async def run_tool(self, tool_name: str, key: str, idempotency_key: str | None = None) -> str:
        """Run a tool; for the tool doubles.

        Args:
            tool_name: Name of the tool.
            key: Its argument.
            idempotency_key: The key that the tool can read, for `Ability.IDEMPOTENCY_KEY`.

        Raises:
            ToolExecutionError: The scenario lets the tool fail, for the model to read.
            RuntimeError: The scenario lets the tool fail in another way.
        """
        tool = self.record_tool_run(tool_name, key, idempotency_key)
        # Calls that run at the same time take turns here, so that mixed-up ones show.
        for _ in range(5):
            await asyncio.sleep(0)
        if tool.error is not None:
            raise ToolExecutionError(tool.error)
        if tool.exception is not None:
            raise RuntimeError(tool.exception)
        return tool.output_for(key)

    def record_model_call(self, given: object = None) -> ModelReply:
        """Answer a model call at once; for doubles that cannot wait. See `call_model`."""
        step = self._witness.current_step()
        step.model_calls.append("\n".join(_texts(given)))
        self._witness.model_was_called.set()
        replies = self.scenario.turns[step.turn - 1]
        reply = replies[min(step.reply, len(replies) - 1)]
        if reply.failure is not None and step.attempt > reply.failure.attempts:
            return replace(reply, failure=None)
        return reply

    def record_tool_run(
        self, tool_name: str, key: str, idempotency_key: str | None = None
    ) -> ScenarioTool:
        """Record that a tool runs, and nothing else; for doubles that act on their own."""
        self._witness.current_step().tool_runs.append(ToolRun(tool_name, key, idempotency_key))
        return self.scenario.tool(tool_name)


class WatchedRunner:
    """A runner that is watched by a witness."""

    def __init__(self, witness: Witness, runner: AgentFrameworkRunner) -> None:
        self._witness = witness
        self._runner = runner

    def build_user_message(self, text: str) -> FrameworkMessage:
        """See `AgentFrameworkRunner`."""
        return self._runner.build_user_message(text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        """See `AgentFrameworkRunner`."""
        with self._witness.model_step(turn) as step:
            outcome = await self._runner.run_model_step(turn)
        self._witness.note_outcome(turn, step, outcome)
        return outcome

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """See `AgentFrameworkRunner`."""
        with self._witness.tool_step(call):
            return await self._runner.execute_deferred_tool_call(call)


def _place(turn: AgentTurnContext) -> tuple[str, str, str]:
    return (turn.flow_id, turn.turn_id, turn.framework_run_state or "")


def _turn_number(turn_id: str) -> int:
    return int(turn_id.removeprefix("turn-"))


def _texts(value: object) -> Iterator[str]:
    """Yield every piece of text in lists and mappings, in order."""
    match value:
        case None:
            return
        case str():
            yield value
        case Mapping():
            for entry in cast("Mapping[object, object]", value).values():
                yield from _texts(entry)
        case list() | tuple():
            for entry in cast("list[object]", value):
                yield from _texts(entry)
        case _:
            yield str(value)
