"""Which nested agents can be opened up into Steps, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, FunctionTool
from stepped_session import session_of
from stepwise_runs import usual

from dex_agents import AgentDefinitionError, ToolEffect, ToolPolicy
from dex_agents_openai_agents import OpenAIAgentsRunner, stepwise_agent_tool


def refused(agent: Agent[Any]) -> str:
    with pytest.raises(AgentDefinitionError) as refusal:
        OpenAIAgentsRunner(agent)
    return str(refusal.value)


def outer_of(*tools: FunctionTool, **more: Any) -> Agent[Any]:
    return Agent(name="Outer", tools=list(tools), **more)


def test_what_cannot_be_opened_up_is_refused_with_its_path() -> None:
    inner = Agent(name="Inner", handoffs=[Agent(name="Other")])
    tool = stepwise_agent_tool(inner, "inner", "Ask.")
    assert refused(outer_of(tool)).startswith(
        "agent 'Outer' > tool 'inner' > agent 'Inner' has handoffs"
    )
    within = Agent(
        name="Inner", tools=[stepwise_agent_tool(Agent(name="Innermost"), "deeper", "Ask.")]
    )
    assert refused(outer_of(stepwise_agent_tool(within, "inner", "Ask."))).startswith(
        "agent 'Outer' > tool 'inner' > agent 'Inner' > tool 'deeper' is a stepwise agent tool"
    )
    timed = stepwise_agent_tool(Agent(name="Inner"), "inner", "Ask.")
    timed.timeout_seconds = 1
    assert refused(outer_of(timed)).startswith("agent 'Outer' > tool 'inner' is a stepwise")
    twice = Agent(name="Inner")
    tools = [stepwise_agent_tool(twice, name, "Ask.") for name in ("a", "b")]
    assert "two places" in refused(outer_of(*tools))
    assert "two places" in refused(
        outer_of(stepwise_agent_tool(twice, "a", "Ask."), handoffs=[twice])
    )
    assert "two agents are named 'Outer'" in refused(
        outer_of(stepwise_agent_tool(Agent(name="Outer"), "a", "Ask."))
    )


def test_policies_may_name_the_tools_of_a_nested_agent() -> None:
    two = usual()
    read = ToolPolicy(ToolEffect.READ)
    OpenAIAgentsRunner(two.outer).validate_tool_policies(dict.fromkeys(("inner", "pay"), read))


async def test_a_nested_hand_made_tool_stays_one_step() -> None:
    """`Agent.as_tool` is left as it is."""
    two = usual()
    two.outer.tools[0] = two.inner.as_tool("inner", "Ask.")
    two.inner.tools = [tool for tool in two.inner.tools if tool.name == "look"]
    session = session_of(two.outer, models=[two.outer_model])
    turn = await session.turn("go")
    assert list(turn.records) == ["p1"]
