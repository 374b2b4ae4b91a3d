"""Run hooks: code of the application that watches what the agents do."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, RunContextWrapper, RunHooks, Tool, function_tool
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


class Diary(RunHooks[None]):
    """Prints a line for everything that happens.

    Tool hooks run around the real body, in the Step of the tool. `on_agent_start` runs once per
    model Step: each is a run of the framework.
    """

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        print(f"({agent.name} thinks)")

    async def on_handoff(
        self, context: RunContextWrapper[None], from_agent: Any, to_agent: Any
    ) -> None:
        print(f"({from_agent.name} hands over to {to_agent.name})")

    async def on_tool_start(self, context: RunContextWrapper[None], agent: Any, tool: Tool) -> None:
        print(f"({agent.name} uses {tool.name})")

    async def on_tool_end(
        self, context: RunContextWrapper[None], agent: Any, tool: Tool, result: object
    ) -> None:
        print(f"({tool.name} gave {result})")


@function_tool
def roll_wheel(spokes: int) -> str:
    """Check whether a wheel runs true."""
    return "true" if spokes % 2 == 0 else "wobbly"


tester = Agent[None](
    name="Tester", instructions="Say in a few words how the wheel runs.", tools=[roll_wheel]
)
desk = Agent[None](name="Desk", instructions="Hand wheels over to the tester.", handoffs=[tester])
flow = openai_agents_session_flow(
    desk,
    flow_type="LifecycleAgent",
    hooks=Diary(),
    tool_policies={"roll_wheel": ToolPolicy(ToolEffect.READ)},
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "Here is a wheel with 32 spokes."))
