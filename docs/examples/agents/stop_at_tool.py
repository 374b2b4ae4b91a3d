"""A tool whose output is the answer: the model is not asked again after it."""

from __future__ import annotations

import asyncio

from agents import Agent, StopAtTools, function_tool
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


@function_tool
def find_bicycle(colour: str) -> str:
    """Find the number of the customer's bicycle."""
    return "bicycle 12"


@function_tool
def print_ticket(number: int) -> str:
    """Print the ticket that the customer takes home."""
    return f"TICKET {number}: ready on Friday"


agent = Agent[None](
    name="Counter",
    instructions="Find the bicycle, then print its ticket.",
    tools=[find_bicycle, print_ticket],
    tool_use_behavior=StopAtTools(stop_at_tool_names=["print_ticket"]),
)
flow = openai_agents_session_flow(
    agent,
    flow_type="StopAtToolAgent",
    tool_policies={
        "find_bicycle": ToolPolicy(ToolEffect.READ),
        "print_ticket": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
    },
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "I bring the green one."))
