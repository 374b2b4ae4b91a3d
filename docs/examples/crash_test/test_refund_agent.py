"""The tests that the page "Test your agent against crashes" shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dex_agents_testkit.faults import CrashableAgent
from dex_agents_testkit.model_server import serve_model_script

pytestmark = pytest.mark.timeout(300)

FLOW = f"{Path(__file__).with_name('refund_agent.py')}:build_flow"
MODEL: dict[str, Any] = {
    "rules": [
        {
            "when": {"last": "user"},
            "reply": {"tool_calls": [{"name": "refund", "arguments": {"order": "7"}}]},
        },
        {"when": {"last_tool": "refund"}, "reply": {"text": "The shop says: ${tool:refund}"}},
    ]
}


async def test_a_worker_killed_after_the_refund_leaves_one_refund(
    crashable_agent: Callable[..., CrashableAgent], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    async with serve_model_script(MODEL) as model:
        env = {"REFUND_LEDGER": str(ledger), **model.client_env}
        async with crashable_agent(FLOW, env=env) as agent:
            agent.kill_at("tool.effect:refund")
            await agent.say("session-1", "Refund order 7.")
            await agent.answer("session-1", approved=True)
            ended = await agent.turn_ended("session-1")
    assert ledger.read_text() == "refunded 7\n"
    assert "not known whether this tool call took effect" in ended.messages[-1].text
