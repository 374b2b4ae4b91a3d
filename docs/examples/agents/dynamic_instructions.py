"""Instructions made for each model call, from a run context made for each Step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agents import Agent, RunContextWrapper
from talk import talk

from dex_agents_openai_agents import openai_agents_session_flow


@dataclass
class Visit:
    """What the instructions look at."""

    is_first_question: bool


def visit_of(session_id: str, turn_id: str) -> Visit:
    """Make the context from what the session knows: any process gives the same one."""
    return Visit(is_first_question=turn_id == "turn-1")


def instructions(context: RunContextWrapper[Visit], agent: Agent[Visit]) -> str:
    """Welcome customers once."""
    welcome = "Welcome the customer. " if context.context.is_first_question else ""
    return f"{welcome}Answer questions about our opening hours: 9 to 17, closed on Sundays."


agent = Agent[Visit](name="Front desk", instructions=instructions)
flow = openai_agents_session_flow(
    agent, flow_type="DynamicInstructionsAgent", context_factory=visit_of
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "When do you open?", "And on Sunday?"))
