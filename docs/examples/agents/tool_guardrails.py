"""Guardrails of a tool: one looks at the arguments before the body runs, one at its output.

An output that is refused is never stored or shown.
"""

from __future__ import annotations

import asyncio
import json

from agents import (
    Agent,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolOutputGuardrailData,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)
from talk import talk

from dex_agents import ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


@tool_input_guardrail
def only_real_numbers(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Let only frame numbers through."""
    number = str(json.loads(data.context.tool_arguments).get("frame_number"))
    if not number.isdigit():
        return ToolGuardrailFunctionOutput.reject_content(f"{number} is no frame number")
    return ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail
def no_names(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Keep the names of owners out of the conversation."""
    if "owner" in str(data.output):
        return ToolGuardrailFunctionOutput.reject_content("registered, the owner is not shown")
    return ToolGuardrailFunctionOutput.allow()


@function_tool(tool_input_guardrails=[only_real_numbers], tool_output_guardrails=[no_names])
def registry(frame_number: str) -> str:
    """Look a frame number up."""
    return "owner: Ida Berg" if frame_number == "4711" else "not registered"


agent = Agent[None](name="Registrar", instructions="Look frame numbers up.", tools=[registry])
flow = openai_agents_session_flow(
    agent,
    flow_type="ToolGuardrailsAgent",
    tool_policies={"registry": ToolPolicy(ToolEffect.READ)},
)

if __name__ == "__main__":
    asyncio.run(talk(flow, "Who owns bicycle 4711, and who owns my-bike?"))
