"""The agent of the specification's example: it refunds one order, which needs approval."""

from __future__ import annotations

import os
from pathlib import Path

from dex_agents import AgentSessionFlow, AgentSessionOptions
from dex_agents.testing import InvocationLog
from dex_agents_testkit import ScriptedRunner, parse_runner_script

SCRIPT = {
    "tools": {"refund": {"effect": "non_idempotent_write", "output": "refunded $order"}},
    "turns": [
        {
            "replies": [
                {"tool_calls": [{"id": "c1", "name": "refund", "arguments": {"order": "7"}}]},
                {"message": "Order 7 is refunded."},
            ]
        }
    ],
}


def refund_log(state_dir: Path) -> InvocationLog:
    return InvocationLog(state_dir / "calls.jsonl")


def build_flow() -> AgentSessionFlow:
    state_dir = os.environ.get("MY_STATE_DIR")
    runner = ScriptedRunner(
        parse_runner_script(SCRIPT), log=refund_log(Path(state_dir)) if state_dir else None
    )
    options = AgentSessionOptions(tool_policies=runner.tool_policies())
    return AgentSessionFlow(runner, flow_type="RefundAgent", options=options)
