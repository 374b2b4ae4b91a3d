"""A structured answer: the last message is JSON of the declared type."""

from __future__ import annotations

import asyncio

from agents import Agent, function_tool
from pydantic import BaseModel
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


class Part(BaseModel):
    """One part of an estimate."""

    name: str
    euros: float


class Estimate(BaseModel):
    """What a repair will cost."""

    parts: list[Part]
    hours: float


@function_tool(output_type=Part)
def catalogue(name: str) -> Part:
    """Look a part up."""
    return Part(name=name, euros=24.0)


agent = Agent[None](
    name="Estimator",
    instructions="Estimate what a repair costs. Look parts up in the catalogue.",
    tools=[catalogue],
    output_type=Estimate,
)
flow = openai_agents_session_flow(
    agent,
    flow_type="StructuredOutputAgent",
    tool_policies={"catalogue": ToolPolicy(ToolEffect.READ)},
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "My chain is worn out."))
