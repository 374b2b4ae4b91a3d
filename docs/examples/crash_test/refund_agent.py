"""An agent of the OpenAI Agents SDK that pays refunds, and the session Flow around it."""

from __future__ import annotations

import os
from pathlib import Path

from agents import Agent, RunConfig, function_tool

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow


@function_tool
def refund(order: str) -> str:
    """Pay an order back."""
    with Path(os.environ["REFUND_LEDGER"]).open("a", encoding="utf-8") as ledger:
        ledger.write(f"refunded {order}\n")
    return f"order {order} is refunded"


def build_flow() -> AgentSessionFlow:
    """Build the session Flow of the agent."""
    return openai_agents_session_flow(
        Agent(name="Refunds", instructions="Refund what the user asks for.", tools=[refund]),
        flow_type="Refunds",
        tool_policies={"refund": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)},
        run_config=RunConfig(tracing_disabled=True),
    )
