"""Code that looks at the tools' values and decides whether they are the answer."""

from __future__ import annotations

import asyncio

from agents import (
    Agent,
    FunctionToolResult,
    RunContextWrapper,
    ToolsToFinalOutputResult,
    function_tool,
)
from pydantic import BaseModel
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


class Weather(BaseModel):
    """What the sky does."""

    place: str
    rain_mm: float


@function_tool
def weather(place: str) -> Weather:
    """Look up the weather of a place."""
    return Weather(place=place, rain_mm={"the pass": 0.0, "the coast": 12.5}[place])


def decide(
    context: RunContextWrapper[None], results: list[FunctionToolResult]
) -> ToolsToFinalOutputResult:
    """Answer at once when it is dry; let the model find words for rain."""
    found: list[Weather] = [result.output for result in results]
    if all(each.rain_mm == 0 for each in found):
        places = " and ".join(each.place for each in found)
        return ToolsToFinalOutputResult(is_final_output=True, final_output=f"{places}: dry, go!")
    return ToolsToFinalOutputResult(is_final_output=False)


agent = Agent[None](
    name="Guide",
    instructions="Say whether a ride is a good idea today.",
    tools=[weather],
    tool_use_behavior=decide,
)
flow = openai_agents_session_flow(
    agent,
    flow_type="ToolUseBehaviorAgent",
    tool_policies={"weather": ToolPolicy(ToolEffect.READ)},
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "To the coast?", "Over the pass, then?"))
