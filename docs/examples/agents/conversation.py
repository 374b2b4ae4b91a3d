"""A conversation: the session is its memory, without response ids and without a session store."""

from __future__ import annotations

import asyncio

from agents import Agent, function_tool
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


@function_tool
def tyre_pressure(tyre_width_mm: int) -> str:
    """Return the pressure in bar for a tyre of this width."""
    return f"{round(180 / tyre_width_mm, 1)} bar"


agent = Agent[None](
    name="Mechanic",
    instructions="You are a bicycle mechanic. Look pressures up instead of guessing.",
    tools=[tyre_pressure],
)
flow = openai_agents_session_flow(
    agent,
    flow_type="ConversationAgent",
    tool_policies={"tyre_pressure": ToolPolicy(ToolEffect.READ)},
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "I ride 28 mm tyres.", "How much air do they want?"))
