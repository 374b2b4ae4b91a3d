"""An input guardrail: a question that trips it ends the turn, and the session goes on."""

from __future__ import annotations

import asyncio

from agents import (
    Agent,
    GuardrailFunctionOutput,
    RunContextWrapper,
    TResponseInputItem,
    input_guardrail,
)
from talk import talk

from dex_agents_openai_agents import openai_agents_session_flow


# Not beside the model call but before it, so that a question that trips costs no call.
@input_guardrail(run_in_parallel=False)
async def only_bicycles(
    context: RunContextWrapper[None], agent: Agent[None], asked: str | list[TResponseInputItem]
) -> GuardrailFunctionOutput:
    """Refuse questions about cars."""
    newest = asked if isinstance(asked, str) else str(asked[-1].get("content"))
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="car" in newest.split())


agent = Agent[None](
    name="Mechanic",
    instructions="You repair bicycles.",
    input_guardrails=[only_bicycles],
)
flow = openai_agents_session_flow(agent, flow_type="InputGuardrailAgent")

if __name__ == "__main__":
    asyncio.run(talk(flow, "Can you fix my car ?", "Then my bicycle, please."))
