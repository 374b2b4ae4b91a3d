"""One agent before and after a deploy, a flow type for each kind of change.

`UPGRADE_RELEASE` says which release a worker process serves: `before` or `after`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, Tool, function_tool
from openai import AsyncOpenAI

from dex_agents import AgentSessionFlow, ToolEffect
from dex_agents.testing import InvocationLog, run_agent_worker
from dex_agents_openai_agents import openai_agents_session_flow
from dex_agents_openai_agents._steps import model_step
from dex_agents_openai_agents._stored.run_state import StoredRun, encode_run

CHANGES = ("agent renamed", "tool removed", "tool renamed", "schema changed", "framework changed")


def build_flows(release: str, folder: Path, model_url: str) -> dict[str, AgentSessionFlow]:
    """Return the flow of each change, as a release has it."""
    client = AsyncOpenAI(base_url=model_url, api_key="unused", max_retries=0)
    provider = OpenAIProvider(openai_client=client)
    return {
        change: openai_agents_session_flow(
            _agent(change if release == "after" else "", change, folder),
            flow_type=change.title().replace(" ", ""),
            default_tool_effect=ToolEffect.NON_IDEMPOTENT_WRITE,
            run_config=RunConfig(model_provider=provider, tracing_disabled=True),
        )
        for change in CHANGES
    }


def _agent(change: str, flow: str, folder: Path) -> Agent[Any]:
    log = InvocationLog(folder / "tools.log")

    def pay(amount: int) -> str:
        """Pay a bill."""
        log.record("pay", flow=flow, amount=amount)
        return f"paid {amount}"

    def pay_in(amount: int, currency: str) -> str:
        """Pay a bill."""
        log.record("pay", flow=flow, amount=amount, currency=currency)
        return f"paid {amount} {currency}"

    def look(bill: str) -> str:
        """Look at a bill."""
        return "looked"

    tools: list[Tool] = [function_tool(look), function_tool(pay)]
    match change:
        case "tool removed":
            tools.pop()
        case "tool renamed":
            tools[1] = function_tool(pay, name_override="pay_now")
        case "schema changed":
            tools[1] = function_tool(pay_in, name_override="pay")
        case _:
            pass
    return Agent(
        name="Cashier 2" if change == "agent renamed" else "Cashier", instructions=flow, tools=tools
    )


def write_as_a_newer_framework() -> None:
    """Store the states of one flow with a schema version that no framework here reads."""

    def encode(run: StoredRun, records: Any) -> str:
        if "framework changed" in str(run.state):
            run = replace(run, state={**run.state, "$schemaVersion": "99.0"})
        return encode_run(run, records)

    model_step.__dict__["encode_run"] = encode


if __name__ == "__main__":
    served = os.environ["UPGRADE_RELEASE"]
    if served == "before":
        write_as_a_newer_framework()
    flows = build_flows(served, Path(os.environ["UPGRADE_FOLDER"]), os.environ["UPGRADE_MODEL_URL"])
    run_agent_worker(flows.values())
