"""What the gates stand on: an agent whose tools ask for approval stops before any of them runs."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from typing import Any

import pytest
from agents import (
    Agent,
    CustomTool,
    FunctionTool,
    ModelBehaviorError,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    ShellTool,
    Tool,
    UserError,
    function_tool,
    handoff,
)
from agents.run_config import SandboxRunConfig
from agents.sandbox import SandboxAgent
from agents.testing import ModelStep, ScriptedModel, scripted_sandbox_session
from native_calls import custom_call, shell_call, whole
from sdk_runs import USER, approved, pending_ids, soft_stopped
from stepped_session import call, outputs, response, says, script


def never_run(context: Any) -> str:
    """Fail the test."""
    raise AssertionError("a body ran")


def gate(name: str = "it", original: Any = never_run) -> FunctionTool:
    copied = copy.copy(function_tool(original, name_override=name))
    copied.needs_approval = True
    return copied


@pytest.mark.sdk_fact("gate.stops-after-first-response")
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_run_stops_at_the_gate_after_one_response(is_streamed: bool) -> None:
    model = script(response(call("it", "c1", context="x")))
    agent = Agent(name="A", model=model, tools=[gate()])
    if is_streamed:
        result: Any = Runner.run_streamed(agent, USER)
        async for _event in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, USER)
    assert pending_ids(result) == ["c1"]
    assert result.final_output is None
    assert len(model.calls) == 1


@pytest.mark.sdk_fact("gate.pending-call-names-itself")
async def test_a_pending_call_tells_all_that_a_session_records() -> None:
    model = script(response(call("it", "c1", context="x")))
    [item] = (await Runner.run(Agent(name="A", model=model, tools=[gate()]), USER)).interruptions
    assert (item.call_id, item.tool_name, item.qualified_name) == ("c1", "it", "it")
    assert (item.tool_namespace, item.agent.name) == (None, "A")
    assert item.arguments == '{"context":"x"}'
    assert item.tool_origin is not None
    assert item.tool_origin.type == "function"


@pytest.mark.sdk_fact("gate.function-calls-in-model-order")
async def test_pending_calls_of_functions_come_in_the_models_order() -> None:
    names = ["b", "a", "b", "c", "a"]
    calls = [call(name, f"c{i}", context="x") for i, name in enumerate(names)]
    tools: list[Tool] = [gate("a"), gate("b"), gate("c")]
    result = await Runner.run(Agent(name="A", model=script(response(*calls)), tools=tools), USER)
    assert pending_ids(result) == ["c0", "c1", "c2", "c3", "c4"]


async def custom_body(_context: Any, _text: str) -> str:
    return ""


@pytest.mark.sdk_fact("gate.other-kinds-after-functions")
@pytest.mark.parametrize(
    ("first", "other"),
    [
        (shell_call("x1", "ls"), ShellTool(executor=lambda _r: "", needs_approval=True)),
        (custom_call("note", "x1", "t"), CustomTool("note", "N", custom_body, needs_approval=True)),
    ],
    ids=["shell", "custom"],
)
async def test_pending_calls_of_other_kinds_come_last(first: Any, other: Tool) -> None:
    model = script(whole(first, call("it", "f1", context="x")))
    agent = Agent(name="A", model=model, tools=[other, gate()])
    assert pending_ids(await Runner.run(agent, USER)) == ["f1", "x1"]


class Special(Agent[Any]):
    """An agent that cannot be made from the fields of an agent."""

    def __init__(self, model: Any) -> None:
        super().__init__(name="Special", model=model)


@pytest.mark.sdk_fact("gate.copied-agent-takes-a-subclass")
async def test_a_copied_agent_may_get_a_subclass_where_replace_fails() -> None:
    original = Special(script(response(call("it", "c1", context="x"))))
    with pytest.raises(TypeError):
        dataclasses.replace(original, name="Other")

    class Gated(Special):
        async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
            return [gate()]

    copied = copy.copy(original)
    copied.__class__ = Gated
    assert pending_ids(await Runner.run(copied, USER)) == ["c1"]
    assert type(original) is Special


class Counting(FunctionTool):
    """A function tool of a class of its own."""

    def label(self) -> str:
        """Say which."""
        return f"counting {self.name}"


@pytest.mark.sdk_fact("gate.copied-tool-is-independent")
async def test_a_copied_tool_keeps_its_class_and_body_and_changes_nothing_in_the_original() -> None:
    async def body(_context: Any, _arguments: str) -> str:
        return "real"

    original = Counting("it", "It.", {"type": "object", "properties": {}}, body)
    copied = copy.copy(original)
    copied.needs_approval = True
    assert copied.label() == "counting it"
    assert original.needs_approval is False
    agent = Agent(
        name="A", model=script(response(call("it", "c1")), response(says("ok"))), tools=[copied]
    )
    stopped = await Runner.run(agent, USER)
    resumed = await Runner.run(agent, await approved(agent, stopped))
    assert outputs(resumed.to_input_list()) == ["real"]


@pytest.mark.sdk_fact("gate.class-survives-a-sandbox", "kind.sandbox-tools-can-be-gated")
async def test_a_sandbox_run_keeps_the_class_of_its_agent_and_nothing_set_on_the_object() -> None:
    class Gated(SandboxAgent[Any]):
        async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
            seen.append(getattr(self, "mark", None))
            gates: list[Tool] = []
            for tool in await super().get_all_tools(run_context):
                copied = copy.copy(tool)
                if isinstance(copied, FunctionTool):
                    copied.needs_approval = True
                gates.append(copied)
            return gates

    seen: list[Any] = []
    model = script(response(call("exec_command", "s1", cmd="ls"), call("it", "c1", context="x")))
    agent = SandboxAgent[Any](
        name="A", model=model, tools=[function_tool(never_run, name_override="it")]
    )
    agent.__class__ = Gated
    agent.__dict__["mark"] = "set"
    session = scripted_sandbox_session([{"method": "exec", "error": AssertionError("ran")}])
    config = RunConfig(sandbox=SandboxRunConfig(session=session))
    result = await Runner.run(agent, USER, run_config=config)
    assert pending_ids(result) == ["s1", "c1"]
    assert set(seen) == {None}, "the run works on a clone"


@pytest.mark.sdk_fact("gate.assigned-tools-fail-overlapping-runs")
@pytest.mark.parametrize("is_assigned", [True, False])
async def test_a_tool_list_assigned_while_another_run_is_open_fails_a_run(
    is_assigned: bool,
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_call: Any) -> Any:
        started.set()
        await go_on.wait()
        return [says("one")]

    model = ScriptedModel([ModelStep.respond(wait), response(says("two"))])
    agent = Agent(name="A", model=model, tools=[gate("a")])
    first = asyncio.create_task(Runner.run(agent, USER))
    await asyncio.wait_for(started.wait(), 10)
    if is_assigned:
        agent.tools = [gate("b")]
    second = asyncio.create_task(Runner.run(agent, USER))
    await asyncio.wait({second}, timeout=10)
    go_on.set()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert any(isinstance(result, UserError) for result in results) == is_assigned, results


@pytest.mark.sdk_fact("gate.vanished-tool-fails-the-resume")
async def test_a_tool_that_is_disabled_meanwhile_fails_the_resume_before_the_model() -> None:
    enabled = [True]
    tool = gate()
    tool.is_enabled = lambda _context, _agent: enabled[0]
    model = script(response(call("it", "c1", context="x")), response(says("never")))
    agent = Agent(name="A", model=model, tools=[tool])
    stopped = await Runner.run(agent, USER)
    enabled[0] = False
    with pytest.raises(ModelBehaviorError, match="it"):
        await Runner.run(agent, await approved(agent, stopped))
    assert len(model.calls) == 1


@pytest.mark.sdk_fact("gate.agent-start-ends-the-resolving")
async def test_agent_start_comes_between_resolving_calls_and_listing_tools_for_the_request() -> (
    None
):
    log: list[str] = []

    class Listing(Agent[Any]):
        async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
            log.append("list")
            return await super().get_all_tools(run_context)

    class Hooks(RunHooks[Any]):
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            log.append("agent start")

    async def recorded(_context: Any, _arguments: str) -> str:
        log.append("result")
        return "done"

    tool = gate()
    tool.on_invoke_tool = recorded
    model = script(response(call("it", "c1", context="x")), response(says("ok")))
    agent = Listing(name="A", model=model, tools=[tool])
    stopped = await Runner.run(agent, USER)
    state = await approved(agent, stopped)
    assert log.pop() == "list", "restoring lists the tools too"
    log.clear()
    await soft_stopped(agent, state, hooks=Hooks())
    before, after = log[: log.index("agent start")], log[log.index("agent start") + 1 :]
    assert before[0] == "list"
    assert before[-1] == "result"
    assert after == ["list"]


@pytest.mark.sdk_fact("gate.handoff-refers-weakly")
def test_a_handoff_keeps_its_target_by_its_callback_alone() -> None:
    made = handoff(Agent(name="b"))
    reference = made._agent_ref
    assert reference is not None
    assert reference() is not None

    async def elsewhere(_context: Any, _arguments: str) -> Agent[Any]:
        raise AssertionError("never called")

    made.on_invoke_handoff = elsewhere
    assert reference() is None
