"""Agents as tools: one agent keeps the conversation and asks two others.

Each question to another agent is one tool call, and so one Step, with all model calls inside it.
"""

from __future__ import annotations

import asyncio

from agents import Agent, function_tool
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


@function_tool
def shelf(part: str) -> int:
    """Count how many of a part are on the shelf."""
    return {"chain": 4, "saddle": 0}.get(part, 1)


stock = Agent[None](
    name="Stock clerk", instructions="Say whether a part is there. Count it.", tools=[shelf]
)
prices = Agent[None](name="Price clerk", instructions="Name a fair price for a part.")
seller = Agent[None](
    name="Seller",
    instructions="Ask the clerks about stock and price, then answer the customer.",
    tools=[
        stock.as_tool("ask_stock", "Ask whether a part is there."),
        prices.as_tool("ask_price", "Ask what a part costs."),
    ],
)
flow = openai_agents_session_flow(
    seller,
    flow_type="AgentsAsToolsAgent",
    tool_policies={
        "ask_stock": ToolPolicy(ToolEffect.READ),
        "ask_price": ToolPolicy(ToolEffect.READ),
    },
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "Do you have a chain, and what is it?"))
