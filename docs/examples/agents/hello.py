"""The smallest agent: a name and instructions."""

from __future__ import annotations

import asyncio

from agents import Agent
from talk import talk

from dex_agents_openai_agents import openai_agents_session_flow

agent = Agent[None](
    name="Mechanic",
    instructions="You are a friendly bicycle mechanic. Answer in one short sentence.",
)
flow = openai_agents_session_flow(agent, flow_type="HelloAgent")

if __name__ == "__main__":
    asyncio.run(talk(flow, "My chain squeaks. What should I do?"))
