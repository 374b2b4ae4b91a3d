"""A person decides: dear orders wait for an answer, for days if need be, over every restart."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, function_tool
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


async def is_dear(_context: Any, arguments: dict[str, Any], _call_id: str) -> bool:
    """Ask a person about orders above 100 euros."""
    return arguments["euros"] > 100


@function_tool(needs_approval=is_dear)
def order_part(part: str, euros: int) -> str:
    """Order a part from the supplier."""
    return f"{part} is ordered"


agent = Agent[None](name="Buyer", instructions="Order what the workshop needs.", tools=[order_part])
flow = openai_agents_session_flow(
    agent,
    flow_type="HumanInTheLoopAgent",
    # A write that must not happen twice would always ask; here the rule of the tool decides.
    tool_policies={
        "order_part": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
    },
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "We need a bell, a motor and a golden saddle."))
