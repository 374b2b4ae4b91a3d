"""Handoffs: a front desk passes the customer on, and who took over keeps the conversation."""

from __future__ import annotations

import asyncio

from agents import Agent, function_tool
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


@function_tool
def repair_days(job: str) -> int:
    """Return how many days a repair takes."""
    return {"brakes": 1, "wheel": 3}.get(job, 7)


repairs = Agent[None](
    name="Repairs",
    handoff_description="Takes bicycles in and repairs them.",
    instructions="You repair bicycles. Look up how long a job takes.",
    tools=[repair_days],
)
sales = Agent[None](
    name="Sales",
    handoff_description="Sells bicycles.",
    instructions="You sell bicycles.",
)
desk = Agent[None](
    name="Front desk",
    instructions="Pass the customer on to whoever can help. Do not answer yourself.",
    handoffs=[repairs, sales],
)
flow = openai_agents_session_flow(
    desk,
    flow_type="HandoffAgent",
    tool_policies={"repair_days": ToolPolicy(ToolEffect.READ)},
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "My brakes do not grip.", "And if the wheel is bent as well?"))
