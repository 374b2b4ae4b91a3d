"""What a runner accepts at construction, and what it refuses, with the path to it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from agents import (
    Agent,
    CodeInterpreterTool,
    ComputerTool,
    FileSearchTool,
    Handoff,
    HostedMCPTool,
    ImageGenerationTool,
    LocalShellTool,
    RunContextWrapper,
    ShellTool,
    WebSearchTool,
    function_tool,
    handoff,
)
from agents.sandbox import SandboxAgent
from agents.tool import tool_namespace
from stepped_session import SteppedSession, call, response, says, script

from dex_agents import AgentDefinitionError, ToolEffect, ToolPolicy
from dex_agents_openai_agents import (
    OpenAIAgentsRunner,
    openai_agents_session_flow,
    stepwise_agent_tool,
)

READ = ToolPolicy(ToolEffect.READ)


@function_tool
def look() -> str:
    """Look."""
    return "a"


def other_look() -> Any:
    def look() -> str:
        """Look."""
        return "b"

    return function_tool(look)


class NoComputer:
    """Enough of a computer to be refused."""


UNGATEABLE: list[Callable[[], Any]] = [
    lambda: LocalShellTool(executor=lambda _request: ""),
    lambda: ComputerTool(computer=NoComputer()),  # pyright: ignore[reportArgumentType] - never used
]
HOSTED: list[Callable[[], Any]] = [
    WebSearchTool,
    lambda: FileSearchTool(vector_store_ids=["v"]),
    lambda: CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": "c"}),
    lambda: ImageGenerationTool(tool_config={"type": "image_generation"}),
    lambda: HostedMCPTool(
        tool_config={"type": "mcp", "server_label": "s", "require_approval": "never"}
    ),
    lambda: ShellTool(environment={"type": "container_auto"}),
]


@pytest.mark.parametrize("make", UNGATEABLE)
def test_a_tool_that_cannot_run_as_a_step_is_refused_with_its_path(make: Callable[[], Any]) -> None:
    tool = make()
    inner = Agent(name="Inner", tools=[look, tool])
    outer = Agent(name="Outer", handoffs=[handoff(inner)])
    with pytest.raises(AgentDefinitionError) as refusal:
        OpenAIAgentsRunner(outer)
    text = str(refusal.value)
    assert text.startswith(
        f"agent 'Outer' > handoff to agent 'Inner' > tool {tool.name!r} cannot run"
    )
    assert "allow_at_least_once_tools" in text
    OpenAIAgentsRunner(outer, allow_at_least_once_tools=True)


@pytest.mark.parametrize("make", UNGATEABLE)
def test_such_a_tool_of_a_nested_agent_in_steps_is_refused_too(make: Callable[[], Any]) -> None:
    inner = Agent(name="Inner", tools=[make()])
    outer = Agent(name="Outer", tools=[stepwise_agent_tool(inner, "inner", "Ask.")])
    with pytest.raises(AgentDefinitionError) as refusal:
        OpenAIAgentsRunner(outer)
    assert str(refusal.value).startswith("agent 'Outer' > tool 'inner' > agent 'Inner' > tool ")
    OpenAIAgentsRunner(outer, allow_at_least_once_tools=True)


@pytest.mark.parametrize("make", UNGATEABLE)
async def test_such_a_tool_that_comes_at_run_time_ends_the_turn_before_the_model_is_paid(
    make: Callable[[], Any],
) -> None:
    tool = make()

    class Listing(Agent[Any]):
        """An agent with a tool list of its own."""

        async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Any]:
            return [tool]

    model = script(response(says("done")), response(says("done")))
    agent = Listing(name="A", model=model)
    turn = await SteppedSession(lambda: OpenAIAgentsRunner(agent), [model]).turn("go")
    assert turn.failure.message.startswith(f"agent 'A' > tool {tool.name!r} cannot run")
    assert len(model.calls) == 0


def test_a_hosted_server_that_always_asks_is_refused_inside_an_agent_tool() -> None:
    def server(**options: Any) -> Agent[Any]:
        config: Any = {"type": "mcp", "server_label": "s", **options.pop("config", {})}
        return Agent(name="Inner", tools=[HostedMCPTool(tool_config=config, **options)])

    refused = Agent(name="Outer", tools=[server().as_tool("inner", "Ask.")])
    with pytest.raises(AgentDefinitionError, match="> tool 'hosted_mcp' needs approval"):
        OpenAIAgentsRunner(refused)
    for accepted in (
        server(config={"require_approval": "never"}),
        server(on_approval_request=lambda _request: {"approve": True}),
    ):
        OpenAIAgentsRunner(Agent(name="Outer", tools=[accepted.as_tool("inner", "Ask.")]))


@pytest.mark.parametrize("make", HOSTED)
def test_a_tool_of_the_provider_is_part_of_the_model_call(make: Callable[[], Any]) -> None:
    OpenAIAgentsRunner(Agent(name="A", tools=[make()]))


def test_a_sandbox_agent_is_refused_unless_asked_for() -> None:
    with pytest.raises(AgentDefinitionError, match="sandbox"):
        OpenAIAgentsRunner(SandboxAgent(name="S"))
    OpenAIAgentsRunner(SandboxAgent(name="S"), allow_at_least_once_tools=True)


def test_case_13_different_tools_of_one_name_are_refused_with_both_agents() -> None:
    b = Agent(name="B", tools=[other_look()])
    a = Agent(name="A", tools=[look], handoffs=[b])
    with pytest.raises(AgentDefinitionError) as refusal:
        OpenAIAgentsRunner(a)
    assert "'A' and 'B'" in str(refusal.value)
    assert "'look'" in str(refusal.value)


async def test_case_13_one_tool_of_two_agents_runs_for_both() -> None:
    model = script(
        response(call("transfer_to_b", "h1")), response(call("look", "c1")), response(says("done"))
    )
    b = Agent(name="b", model=model, tools=[look])
    a = Agent(name="a", model=model, tools=[look], handoffs=[b])
    turn = await SteppedSession(lambda: OpenAIAgentsRunner(a), [model]).turn("go")
    assert turn.records["c1"].output == "a"


def test_two_tools_of_one_name_in_one_agent_are_refused() -> None:
    with pytest.raises(AgentDefinitionError, match="two tools named 'look'"):
        OpenAIAgentsRunner(Agent(name="A", tools=[look, other_look()]))


def test_two_agents_of_one_name_are_refused_with_both_paths() -> None:
    with pytest.raises(AgentDefinitionError) as refusal:
        OpenAIAgentsRunner(Agent(name="A", handoffs=[Agent(name="A")]))
    assert "agent 'A' and agent 'A' > handoff to agent 'A'" in str(refusal.value)


def test_a_handoff_without_a_known_target_is_refused() -> None:
    target = Agent(name="B")

    async def choose(_context: Any, _arguments: str) -> Agent[Any]:
        return target

    loose = Handoff(
        tool_name="go_somewhere",
        tool_description="x",
        input_json_schema={},
        on_invoke_handoff=choose,
        agent_name="B",
    )
    with pytest.raises(AgentDefinitionError, match="target is not known"):
        OpenAIAgentsRunner(Agent(name="A", handoffs=[loose]))


async def test_a_handoff_to_an_agent_outside_the_graph_ends_the_turn() -> None:
    model = script(response(call("transfer_to_b", "h1")))
    stranger = Agent(name="Stranger", model=model)

    async def elsewhere(_context: Any, _arguments: str) -> Agent[Any]:
        return stranger

    b = Agent(name="b", model=model)
    to_b = handoff(b)
    to_b.on_invoke_handoff = elsewhere
    a = Agent(name="a", model=model, handoffs=[to_b])
    turn = await SteppedSession(lambda: OpenAIAgentsRunner(a), [model]).turn("go")
    assert "'Stranger'" in turn.failure.message


def test_a_policy_for_a_tool_nobody_has_is_refused_and_names_the_real_ones() -> None:
    agent = Agent(name="Support", tools=[look])
    runner = OpenAIAgentsRunner(agent)
    runner.validate_tool_policies({"look": READ})
    with pytest.raises(AgentDefinitionError) as refusal:
        runner.validate_tool_policies({"look": READ, "lok": READ})
    assert "'lok'" in str(refusal.value)
    assert "look" in str(refusal.value)
    with pytest.raises(AgentDefinitionError, match="'lok'"):
        openai_agents_session_flow(agent, flow_type="Support", tool_policies={"lok": READ})


async def test_a_namespaced_tool_is_known_by_its_qualified_name() -> None:
    [tool] = tool_namespace(name="crm", description="CRM", tools=[look])
    namespaced = call("look", "c1")
    namespaced.namespace = "crm"
    model = script(response(namespaced), response(says("done")))
    agent = Agent(name="A", model=model, tools=[tool])
    runner = OpenAIAgentsRunner(agent)
    runner.validate_tool_policies({"crm.look": READ})
    turn = await SteppedSession(
        lambda: runner,
        [model],
        policies={"crm.look": READ},
        default_effect=ToolEffect.UNCLASSIFIED,
    ).turn("go")
    assert turn.records["c1"].tool_name == "crm.look"
    assert turn.records["c1"].effect is ToolEffect.READ
    assert turn.records["c1"].output == "a"


def test_the_applications_agents_and_tools_are_left_as_they_were() -> None:
    b = Agent(name="b", tools=[look])
    a = Agent(name="a", tools=[look], handoffs=[b, handoff(b, tool_name_override="other")])
    before = (list(a.tools), list(a.handoffs), type(a), look.needs_approval, look.on_invoke_tool)
    OpenAIAgentsRunner(a)
    assert (
        list(a.tools),
        list(a.handoffs),
        type(a),
        look.needs_approval,
        look.on_invoke_tool,
    ) == before


@pytest.mark.sdk_fact("gate.copied-agent-takes-a-subclass")
async def test_an_agent_class_of_the_applications_own_works() -> None:
    @dataclass
    class Special(Agent[Any]):
        """An agent with a constructor of its own."""

        def __init__(self, model: Any) -> None:
            super().__init__(name="Special", model=model, tools=[look])
            self.extra = "kept"

    model = script(response(call("look", "c1")), response(says("done")))
    seen: list[Any] = []

    def instructions(_context: Any, agent: Any) -> str:
        seen.append((type(agent).__name__, isinstance(agent, Special), agent.extra))
        return "x"

    agent = Special(model)
    agent.instructions = instructions
    turn = await SteppedSession(lambda: OpenAIAgentsRunner(agent), [model]).turn("go")
    assert turn.text == "done"
    assert set(seen) == {("Special", True, "kept")}


async def test_the_runner_alone_keeps_its_agents_alive() -> None:
    model = script(response(call("transfer_to_b", "h1")), response(says("b here")))
    runner = build(model)
    gc.collect()
    await asyncio.sleep(0)
    turn = await SteppedSession(lambda: runner, [model]).turn("go")
    assert turn.text == "b here"


def build(model: Any) -> OpenAIAgentsRunner:
    b = Agent(name="b", model=model)
    return OpenAIAgentsRunner(Agent(name="a", model=model, handoffs=[handoff(b)]))
