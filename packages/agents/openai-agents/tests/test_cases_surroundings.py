"""Cases about what surrounds a tool: context, nested agents, usage, hooks, cancellation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    function_tool,
)
from agents.testing import ModelStep, ScriptedModel
from agents.tool_context import ToolContext
from pydantic import BaseModel
from stepped_session import (
    SteppedSession,
    call,
    outputs,
    response,
    says,
    script,
    session_of,
)

from dex_agents import AgentDefinitionError, ToolCallStatus
from dex_agents_openai_agents import OpenAIAgentsRunner, get_current_deferred_tool_execution

# --- Cases 8 and 9: the run context -------------------------------------------------------------


async def test_case_8_a_change_to_the_context_stays_within_its_step_from_the_start() -> None:
    @function_tool
    def login(context: RunContextWrapper[dict[str, str]]) -> str:
        """Log in."""
        context.context["user"] = "bob"
        return context.context["user"]

    model = script(response(call("login", "c1")), response(says("done")))
    agent = Agent[Any](
        name="A",
        model=model,
        tools=[login],
        instructions=lambda context, _agent: f"user={context.context.get('user')}",
    )
    context: dict[str, str] = {}
    turn = await session_of(agent, context=context).turn("go")
    assert turn.records["c1"].output == "bob"
    assert [c.system_instructions for c in model.calls] == ["user=None", "user=None"]
    assert context == {}


async def test_case_8_a_context_factory_is_asked_in_every_step() -> None:
    asked: list[tuple[str, str]] = []

    async def make(session_id: str, turn_id: str) -> dict[str, str]:
        asked.append((session_id, turn_id))
        return {"user": session_id}

    @function_tool
    def who(context: RunContextWrapper[dict[str, str]]) -> str:
        """Tell."""
        return context.context["user"]

    model = script(response(call("who", "c1")), response(says("done")))
    agent = Agent[Any](name="A", model=model, tools=[who])
    turn = await session_of(agent, context_factory=make).turn("go")
    assert turn.records["c1"].output == "session-1"
    assert asked == [("session-1", "turn-1")] * 3


class Custom:
    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass
class DataContext:
    when: datetime


class ModelContext(BaseModel):
    when: datetime


@pytest.mark.parametrize(
    "context",
    [
        {"when": datetime(2026, 1, 1)},
        {"thing": Custom(1)},
        DataContext(datetime(2026, 1, 1)),
        ModelContext(when=datetime(2026, 1, 1)),
        Custom(1),
        "text",
    ],
)
async def test_case_9_any_context_that_can_be_copied_works_and_warns_of_nothing(
    context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    @function_tool
    def look(context: RunContextWrapper[Any]) -> str:
        """Look."""
        seen.append(context.context)
        return "seen"

    model = script(response(call("look", "c1")), response(says("done")))
    agent = Agent[Any](name="A", model=model, tools=[look])
    session = session_of(agent, context=context)
    assert (await session.turn("go")).text == "done"
    assert type(seen[0]) is type(context)
    assert not caplog.records


def test_case_9_a_context_that_cannot_be_copied_is_refused_at_construction() -> None:
    with pytest.raises(AgentDefinitionError, match="context_factory"):
        OpenAIAgentsRunner(Agent(name="A"), context=Custom(Lock()))


# --- Cases 21 and 22: agents as tools -----------------------------------------------------------


async def test_case_21_a_nested_agent_that_could_wait_for_a_person_is_refused() -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    innermost = Agent(name="Innermost", tools=[pay])
    inner = Agent(name="Inner", tools=[innermost.as_tool("innermost", "x")])
    reached_by_handoff = Agent(name="Front", handoffs=[innermost])
    for nested in (innermost, inner, reached_by_handoff, innermost.clone()):
        outer = Agent(name="Outer", tools=[nested.as_tool("inner", "x")])
        with pytest.raises(AgentDefinitionError) as refusal:
            OpenAIAgentsRunner(outer)
        assert str(refusal.value).startswith("agent 'Outer' > tool 'inner' > agent ")
        assert "tool 'pay' needs approval" in str(refusal.value)


@pytest.mark.sdk_fact("tool.nested-approval-stops-the-run")
async def test_case_21_a_nested_approval_that_appears_later_fails_the_call_once() -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    inner_model = script(response(call("pay", "i1")))
    inner = Agent(name="Inner", model=inner_model)
    model = script(response(call("inner", "c1", input="x")), response(says("done")))
    agent = Agent(name="Outer", model=model, tools=[inner.as_tool("inner", "x")])
    built = OpenAIAgentsRunner(agent)
    inner.tools.append(pay)
    session = SteppedSession(lambda: built, [model])
    turn = await session.turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert "approval" in (turn.records["c1"].error or "")
    assert len(inner_model.calls) == 1


@pytest.mark.sdk_fact("tool.nested-usage-counts")
async def test_case_22_the_model_calls_of_a_nested_agent_are_counted() -> None:
    keys: list[Any] = []

    @function_tool
    def look() -> str:
        """Look."""
        keys.append(get_current_deferred_tool_execution())
        return "seen"

    inner_model = script(
        response(call("look", "i1"), tokens=10), response(says("inner done"), tokens=10)
    )
    inner = Agent(name="Inner", model=inner_model, tools=[look])
    model = script(
        response(call("inner", "c1", input="x"), tokens=10), response(says("done"), tokens=10)
    )
    agent = Agent(name="Outer", model=model, tools=[inner.as_tool("inner", "x")])
    turn = await session_of(agent).turn("go")
    assert turn.usage.model_calls == 4
    assert turn.usage.total_tokens == 40
    assert outputs(model.calls[1].input) == ["inner done"]
    assert keys == [None], "the tools of a nested agent do not reuse the outer call's key"


@pytest.mark.sdk_fact("tool.nested-run-takes-the-config-of-the-tool-context")
async def test_a_nested_agent_uses_the_applications_run_configuration() -> None:
    inner = Agent(name="Inner", instructions="inner")
    model = script(
        response(call("inner", "c1", input="x")), response(says("in")), response(says("out"))
    )
    agent = Agent(name="Outer", instructions="outer", tools=[inner.as_tool("inner", "x")])
    session = SteppedSession(
        lambda: OpenAIAgentsRunner(agent, run_config=RunConfig(model=model)), [model]
    )
    turn = await session.turn("go")
    assert turn.text == "out"
    assert [c.system_instructions for c in model.calls] == ["outer", "inner", "outer"]


# --- Case 23: usage -----------------------------------------------------------------------------


async def test_case_23_a_model_that_reports_no_usage_still_counts_as_called() -> None:
    @function_tool
    def ping() -> str:
        """Answer."""
        return "pong"

    model = script([call("ping", "c1")], [says("done")])
    turn = await session_of(Agent(name="A", model=model, tools=[ping])).turn("go")
    assert turn.usage.model_calls == 2
    assert turn.usage.total_tokens == 0


# --- Case 37: hooks -----------------------------------------------------------------------------


class LoggingAgentHooks(AgentHooks[Any]):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def on_start(self, context: Any, agent: Any) -> None:
        self.log.append(f"agent start {agent.name}")

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        self.log.append(f"agent end {output}")

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.log.append(f"agent tool start {tool.name}")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        self.log.append(f"agent tool end {result!r}")


class LoggingRunHooks(RunHooks[Any]):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.log.append(f"run start {agent.name}")

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        self.log.append("llm start")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.log.append("llm end")

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.log.append(f"run tool start {tool.name}")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        self.log.append(f"run tool end {result!r}")

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        self.log.append(f"handoff {from_agent.name} {to_agent.name}")


@pytest.mark.sdk_fact("callback.agent-start-repeats", "callback.llm-hooks-per-call")
async def test_case_37_hooks_equal_a_plain_run_but_for_agent_start_after_a_resume() -> None:
    @function_tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    steps = [
        response(call("add", "c1", a=1, b=1)),
        response(call("transfer_to_b", "h1")),
        response(says("done")),
    ]

    def agent(model: Any, log: list[str]) -> Agent[Any]:
        b = Agent[Any](name="b", model=model, hooks=LoggingAgentHooks(log))
        return Agent(name="a", model=model, tools=[add], handoffs=[b], hooks=LoggingAgentHooks(log))

    plain_log: list[str] = []
    await Runner.run(agent(script(*steps), plain_log), "go", hooks=LoggingRunHooks(plain_log))
    log: list[str] = []
    model = script(*steps)
    await session_of(agent(model, log), hooks=LoggingRunHooks(log), models=[model]).turn("go")
    assert "run tool end 2" in log
    repeated = {"run start a": 1, "agent start a": 1}
    for entry, times in repeated.items():
        assert log.count(entry) == plain_log.count(entry) + times
    assert sorted(log) == sorted([*plain_log, *repeated])


async def test_case_37_hooks_are_told_of_a_failed_tool_as_in_a_plain_run() -> None:
    def body(x: int) -> str:
        """Fail."""
        raise ValueError("boom")

    def sorry(_context: Any, error: Exception) -> str:
        return f"sorry, {error}"

    tools = [
        function_tool(body),
        function_tool(body, name_override="polite", failure_error_function=sorry),
    ]
    steps = [
        response(call("body", "c1", x=1), call("polite", "c2", x=1)),
        response(call("body", "c3", x="no number")),
        response(says("done")),
    ]
    plain_log: list[str] = []
    plain = Agent[Any](
        name="a", model=script(*steps), tools=[*tools], hooks=LoggingAgentHooks(plain_log)
    )
    await Runner.run(plain, "go", hooks=LoggingRunHooks(plain_log))
    log: list[str] = []
    agent = Agent[Any](name="a", model=script(*steps), tools=[*tools], hooks=LoggingAgentHooks(log))
    turn = await session_of(agent, hooks=LoggingRunHooks(log)).turn("go")
    assert turn.text == "done"
    assert "run tool end 'sorry, boom'" in log

    def ends(told: list[str]) -> list[str]:
        return sorted(entry for entry in told if "tool end" in entry)

    # Each attempt of a read begins anew, and only the last one has an end.
    assert ends(log) == ends(plain_log)


# --- the tool's own surroundings ----------------------------------------------------------------


async def test_a_tool_finds_its_key_its_agent_and_its_call() -> None:
    seen: dict[str, Any] = {}

    @function_tool
    def sync_tool(context: ToolContext[Any], x: int) -> str:
        """Look around."""
        execution = get_current_deferred_tool_execution()
        assert execution is not None
        seen.update(
            key=execution.idempotency_key,
            attempt=execution.attempt,
            call_id=context.tool_call_id,
            arguments=context.tool_arguments,
            agent=context.agent.name if context.agent else None,
            user=context.context,
        )
        return "ok"

    model = script(response(call("sync_tool", "a/b~c", x=1)), response(says("done")))
    agent = Agent[Any](
        name="A",
        model=model,
        tools=[sync_tool],
        instructions="x",
        output_type=str,
        model_settings=ModelSettings(tool_choice="required"),
    )
    turn = await session_of(agent, context="user").turn("go")
    assert turn.text == "done"
    assert seen == {
        "key": "session-1/turn-1/a~1b~0c",
        "attempt": 1,
        "call_id": "a/b~c",
        "arguments": '{"x":1}',
        "agent": "A",
        "user": "user",
    }
    assert get_current_deferred_tool_execution() is None
    assert [c.model_settings.tool_choice for c in model.calls] == ["required", None]


async def test_a_cancelled_tool_step_cancels_the_tool() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    @function_tool
    async def forever() -> str:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    model = script(response(call("forever", "c1")))
    task = asyncio.create_task(session_of(Agent(name="A", model=model, tools=[forever])).turn("go"))
    await asyncio.wait_for(started.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(cancelled.wait(), 10)


@pytest.mark.sdk_fact("gate.shared-copy-serves-many-runs")
async def test_many_sessions_share_one_runner() -> None:
    @function_tool
    async def echo(x: str) -> str:
        """Echo."""
        await asyncio.sleep(0)
        return f"echo {x}"

    def respond(model_call: Any) -> Any:
        last = model_call.input[-1]
        if last.get("role") == "user":
            return [call("echo", "c1", x=last["content"])]
        return [says(last["output"])]

    model = ScriptedModel([ModelStep.respond(respond) for _ in range(100)])
    runner = OpenAIAgentsRunner(Agent(name="A", model=model, tools=[echo]))
    sessions = [SteppedSession(lambda: runner, session_id=f"s{i}") for i in range(50)]
    turns = await asyncio.gather(*(s.turn(f"text {i}") for i, s in enumerate(sessions)))
    assert [t.text for t in turns] == [f"echo text {i}" for i in range(50)]
