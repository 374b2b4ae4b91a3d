"""A plan run twice: by the framework alone, and as a durable session whose processes are killed."""

from __future__ import annotations

import gc
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents import RunConfig, RunHooks, Runner, Tool
from agents.run_config import CallModelData, ModelInputData
from equivalence_agents import PlannedModel, build_agents
from equivalence_plans import Plan, build_plan
from forked_steps import ForkedRunner
from pydantic import BaseModel
from stepped_session import SteppedSession

from dex_agents import AgentToolCall, AgentTurnContext, AgentTurnOutcome, ToolEffect, TurnCompleted
from dex_agents_openai_agents import OpenAIAgentsRunner

REJECTION = "not this time"


@dataclass
class Trace:
    """What a run did.

    Attributes:
        requests: What the model was sent, call by call.
        items: Items of each turn that completed.
        answers: Final output of each turn that completed, as text.
        tokens: Model calls, input, output and all tokens of each turn that completed.
        error: Type of the error that ended the run, or an empty string.
        killed: Places where a process was killed while a call was in flight.
        records: What became of each tool call of the session.
        asked: Ids of the calls that a person was asked about.
        hooks: What the application's hooks were told, each once.
    """

    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    items: list[list[Any]] = field(default_factory=list[list[Any]])
    answers: list[str] = field(default_factory=list[str])
    tokens: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    error: str = ""
    killed: list[str] = field(default_factory=list[str])
    records: list[AgentToolCall] = field(default_factory=list[AgentToolCall])
    asked: list[str] = field(default_factory=list[str])
    hooks: list[str] = field(default_factory=list[str])


class NotedHooks(RunHooks[Any]):
    """Hooks that write down what they are told.

    Args:
        log: The file.
    """

    def __init__(self, log: Path) -> None:
        self._log = log.with_suffix(".hooks")

    def _note(self, *told: object) -> None:
        with self._log.open("a") as file:
            file.write(json.dumps(" ".join(map(str, told))) + "\n")

    def read(self) -> list[str]:
        """Return what was told, without repetitions and in no order."""
        if not self._log.exists():
            return []
        return sorted({json.loads(line) for line in self._log.read_text().splitlines()})

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self._note("agent starts", agent.name)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self._note("agent ends", agent.name, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        self._note("handoff", from_agent.name, to_agent.name)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]
    ) -> None:
        self._note("model starts", agent.name, system_prompt, len(input_items))

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self._note("model ends", agent.name, [output.type for output in response.output])

    async def on_tool_start(self, context: Any, agent: Any, tool: Tool) -> None:
        self._note("tool starts", agent.name, tool.name, context.tool_call_id)

    async def on_tool_end(self, context: Any, agent: Any, tool: Tool, result: object) -> None:
        self._note("tool ends", agent.name, tool.name, context.tool_call_id, result)


def _at_the_limit(_data: Any) -> str:
    return "the limit is reached"


def _with_a_note(data: CallModelData[Any]) -> ModelInputData:
    note: Any = {"role": "developer", "content": f"You are {data.agent.name}."}
    return ModelInputData([*data.model_data.input, note], data.model_data.instructions)


def error_handlers(plan: Plan) -> Any:
    return {"max_turns": _at_the_limit} if plan.handles_limit else None


def run_config(plan: Plan) -> RunConfig:
    return RunConfig(
        tracing_disabled=True,
        call_model_input_filter=_with_a_note if plan.filters_input else None,
        nest_handoff_history=plan.nests_history,
        tool_not_found_behavior="return_error_to_model"
        if plan.error_for_unknown
        else "raise_error",
    )


async def run_plain(plan: Plan, log: Path) -> Trace:
    """Run a plan by the framework alone, deciding approvals as they come."""
    trace = Trace()
    model = PlannedModel(plan, log, moves_on=True)
    hooks = NotedHooks(log)
    start = build_agents(plan, model)
    agent, history = start, list[Any]()
    for number, (text, _) in enumerate(plan.turns):
        model.place = (number, 0)
        given: list[Any] = [*history, {"role": "user", "content": text}]
        options: dict[str, Any] = {
            "run_config": run_config(plan),
            "max_turns": plan.max_turns,
            "hooks": hooks,
            "error_handlers": error_handlers(plan),
        }
        try:
            result = await Runner.run(agent, given, **options)
            while result.interruptions:
                state = result.to_state()
                for item in result.interruptions:
                    if item.call_id in plan.rejected:
                        state.reject(item, rejection_message=REJECTION)
                    else:
                        state.approve(item)
                result = await Runner.run(agent, state, **options)
        except Exception as error:
            trace.error = type(error).__name__
            break
        history = json.loads(json.dumps(result.to_input_list()))
        agent = result.last_agent
        trace.items.append(history[len(given) :])
        answer = result.final_output
        trace.answers.append(
            answer.model_dump_json() if isinstance(answer, BaseModel) else str(answer)
        )
        usage = result.context_wrapper.usage
        trace.tokens.append(
            (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)
        )
    trace.requests = read_requests(log)
    trace.hooks = hooks.read()
    return trace


class _PlacedRunner(ForkedRunner):
    """Tells the model which call of the plan comes next."""

    def __init__(self, plan: Plan, log: Path) -> None:
        self.model = PlannedModel(plan, log)
        self.hooks = NotedHooks(log)
        start = build_agents(plan, self.model)
        super().__init__(
            lambda: OpenAIAgentsRunner(
                start,
                run_config=run_config(plan),
                max_turns=plan.max_turns,
                hooks=self.hooks,
                error_handlers=error_handlers(plan),
            ),
            set(plan.kills),
        )
        self._log = log
        self._calls = 0

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        number = int(turn.turn_id.removeprefix("turn-")) - 1
        if turn.framework_run_state is None:
            self._calls = 0
        self.model.place = (number, self._calls)
        before = len(read_requests(self._log, keep_repeats=True))
        outcome = await super().run_model_step(turn)
        made = read_requests(self._log, keep_repeats=True)[before:]
        # A step that ends on a tool result makes no call; a killed one makes the same call again.
        assert all(request == made[0] for request in made), "a call was repeated differently"
        self._calls += bool(made)
        return outcome


async def warm_up() -> None:
    """Run one session in this process, so that its children inherit what a first run builds."""
    plan = build_plan(5, frozenset({"handoff", "approval", "parallel", "structured", "reasoning"}))
    with tempfile.TemporaryDirectory() as folder:
        model = PlannedModel(plan, Path(folder) / "log", moves_on=True)
        runner = OpenAIAgentsRunner(build_agents(plan, model), run_config=run_config(plan))
        turn = await SteppedSession(lambda: runner).turn("warm up")
    assert isinstance(turn.outcome, TurnCompleted)
    # What is frozen is not copied to the children by their garbage collection.
    gc.collect()
    gc.freeze()


async def run_durable(plan: Plan, log: Path) -> Trace:
    """Run a plan as a session, every Step in a process of its own."""
    trace = Trace()
    runner = _PlacedRunner(plan, log)
    session = SteppedSession(
        lambda: runner,  # pyright: ignore[reportArgumentType] - same three methods
        default_effect=ToolEffect.READ,
        answer=lambda record: REJECTION if record.tool_call_id in plan.rejected else True,
    )
    for text, _ in plan.turns:
        turn = await session.turn(text)
        trace.records += turn.records.values()
        if not isinstance(turn.outcome, TurnCompleted):
            error = turn.outcome
            trace.error = getattr(error, "error_type", "") or str(error).partition(":")[0]
            break
        items = [json.loads(m.framework_item)["item"] for m in turn.messages]
        # A message without an item is for people only.
        trace.items.append([item for item in items if item is not None])
        trace.answers.append(turn.text)
        usage = turn.usage
        trace.tokens.append(
            (usage.model_calls, usage.input_tokens, usage.output_tokens, usage.total_tokens)
        )
    trace.requests = read_requests(log)
    trace.killed = runner.killed
    trace.hooks = runner.hooks.read()
    trace.asked = session.asked
    return trace


def read_requests(log: Path, *, keep_repeats: bool = False) -> list[dict[str, Any]]:
    """Return the recorded requests; of a repeated one the last."""
    if not log.exists():
        return []
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    if keep_repeats:
        return requests
    by_place = {tuple(request["place"]): request for request in requests}
    return [by_place[place] for place in sorted(by_place)]
