"""Several tool calls in one response: each is a Step of its own, and they run at the same time."""

from __future__ import annotations

import asyncio

from agents import Agent, function_tool
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import get_current_deferred_tool_execution, openai_agents_session_flow

PRICES = {"chain": 24.0, "saddle": 48.5, "bell": 9.0}


@function_tool
def price_of(part: str) -> float:
    """Return the price of a part in euros."""
    return PRICES[part]


@function_tool
async def reserve(part: str) -> str:
    """Put a part aside for the customer."""
    call = get_current_deferred_tool_execution()
    # The shop's own system would take the key, so that a repeated call reserves nothing twice.
    return f"{part} is set aside" + (" under a key" if call and call.idempotency_key else "")


agent = Agent[None](
    name="Seller",
    instructions="Look all prices up at once, then reserve what the customer wants.",
    tools=[price_of, reserve],
)
flow = openai_agents_session_flow(
    agent,
    flow_type="ParallelToolsAgent",
    tool_policies={
        "price_of": ToolPolicy(ToolEffect.READ),
        "reserve": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
    },
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "I need a chain, a saddle and a bell."))
