"""The Flow of generated histories: every message holds the turn that it starts."""

from __future__ import annotations

from typing import Any

from dex_agents import AgentSessionFlow, AgentSessionOptions, StepLimits
from dex_agents_testkit import ScriptedRunner, parse_runner_script

SCRIPT: dict[str, Any] = {
    "turn_in_message": True,
    "tools": {
        "look_up": {"effect": "read", "output": "order $n is paid"},
        "ask_expert": {
            "effect": "read",
            "output": "an expert on $n",
            "usage": {"input_tokens": 5, "output_tokens": 3},
        },
        "open_case": {"effect": "idempotent_write", "output": "case $n"},
        "refund": {"effect": "non_idempotent_write", "output": "refunded $n"},
        "send_mail": {
            "effect": "non_idempotent_write",
            "requires_approval": False,
            "output": "sent $n",
        },
        "deny": {"effect": "read", "error": "not allowed"},
    },
}
TOOLS = tuple(SCRIPT["tools"])


def build_flow() -> AgentSessionFlow:
    """Build the Flow; the test and its workers build the same one."""
    runner = ScriptedRunner(parse_runner_script(SCRIPT))
    return AgentSessionFlow(
        runner,
        flow_type="Histories",
        # Crashes use up attempts, and a turn that ran out of them would be no finding.
        options=AgentSessionOptions(
            tool_policies=runner.tool_policies(),
            model_limits=StepLimits(max_attempts=30),
            tool_limits=StepLimits(max_attempts=30),
        ),
    )
