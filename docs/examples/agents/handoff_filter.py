"""A handoff whose input filter keeps from the next agent what it need not see."""

from __future__ import annotations

import asyncio

from agents import Agent, HandoffInputData, function_tool, handoff
from agents.extensions.handoff_filters import remove_all_tools
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


@function_tool
def customer_file(name: str) -> str:
    """Read what is known of a customer."""
    return f"{name}, 3 Mill Lane, rides a red tandem"


def without_private_data(data: HandoffInputData) -> HandoffInputData:
    """Hide the tool calls of the desk, addresses included, and all but the newest question."""
    data = remove_all_tools(data)
    history = data.input_history
    return data.clone(input_history=history[-1:] if isinstance(history, tuple) else history)


poet = Agent[None](name="Poet", instructions="Answer the customer in rhyme.")
desk = Agent[None](
    name="Front desk",
    instructions="Read the customer's file. If they want a poem, hand over to the poet.",
    tools=[customer_file],
    handoffs=[handoff(poet, input_filter=without_private_data)],
)
flow = openai_agents_session_flow(
    desk,
    flow_type="HandoffFilterAgent",
    tool_policies={"customer_file": ToolPolicy(ToolEffect.READ)},
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "I am Ida, good morning.", "A poem about my bicycle, please."))
