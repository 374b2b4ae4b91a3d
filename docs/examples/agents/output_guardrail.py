"""An output guardrail: an answer that trips it never becomes part of the conversation."""

from __future__ import annotations

import asyncio

from agents import Agent, GuardrailFunctionOutput, RunContextWrapper, output_guardrail
from talk import talk

from dex_agents_openai_agents import openai_agents_session_flow


@output_guardrail
async def no_promises(
    context: RunContextWrapper[None], agent: Agent[None], answer: str
) -> GuardrailFunctionOutput:
    """Refuse answers that promise something."""
    return GuardrailFunctionOutput(
        output_info=None, tripwire_triggered="guarantee" in answer.lower()
    )


agent = Agent[None](
    name="Mechanic",
    instructions="You repair bicycles. Never promise anything.",
    output_guardrails=[no_promises],
)
flow = openai_agents_session_flow(agent, flow_type="OutputGuardrailAgent")

if __name__ == "__main__":
    asyncio.run(talk(flow, "Will it last for ten years?", "For one year, at least?"))
