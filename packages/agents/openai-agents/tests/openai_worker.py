"""The agent of the integration tests, and the worker process that serves it.

A test controls it by files in a folder: every body that runs is logged there, and a tool stops at a
gate when a file named `<tool>.gated` exists.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, function_tool
from openai import AsyncOpenAI

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents.testing import FileGate, InvocationLog, run_agent_worker
from dex_agents_openai_agents import (
    get_current_deferred_tool_execution,
    openai_agents_session_flow,
)

FLOW_TYPE = "SupportAgent"

POLICIES = {
    "find_order": ToolPolicy(ToolEffect.READ),
    "add_note": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
    "refund": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
}


def build_flow(folder: Path, model_url: str | None) -> AgentSessionFlow:
    """Build the flow; the test and its workers build the same one.

    Args:
        folder: Where bodies leave their traces.
        model_url: The scripted provider, or `None` for the default one.
    """

    async def note(name: str, **details: Any) -> None:
        execution = get_current_deferred_tool_execution()
        assert execution is not None
        InvocationLog(folder / "tools.log").record(
            name, key=execution.idempotency_key, attempt=execution.attempt, **details
        )
        if (folder / f"{name}.gated").exists():
            gate = FileGate(folder, name)
            gate.mark_reached()
            await gate.wait_for_release()

    @function_tool
    async def find_order(customer: str) -> str:
        """Find the open order of a customer."""
        await note("find_order", customer=customer)
        return f"customer {customer} has order 7"

    @function_tool
    async def add_note(order: str) -> str:
        """Add a note to an order."""
        await note("add_note", order=order)
        return f"noted on {order}"

    @function_tool
    async def refund(order: str) -> str:
        """Refund an order."""
        await note("refund", order=order)
        return f"refunded {order}"

    provider = (
        OpenAIProvider()
        if model_url is None
        else OpenAIProvider(
            openai_client=AsyncOpenAI(base_url=model_url, api_key="unused", max_retries=0)
        )
    )
    billing = Agent(name="Billing", instructions="Billing", tools=[add_note, refund])
    triage = Agent(name="Triage", instructions="Triage", tools=[find_order], handoffs=[billing])
    return openai_agents_session_flow(
        triage,
        flow_type=FLOW_TYPE,
        tool_policies=POLICIES,
        run_config=RunConfig(model_provider=provider, tracing_disabled=True),
    )


if __name__ == "__main__":
    run_agent_worker(
        [build_flow(Path(os.environ["SUPPORT_STATE_DIR"]), os.environ["SUPPORT_MODEL_URL"])]
    )
