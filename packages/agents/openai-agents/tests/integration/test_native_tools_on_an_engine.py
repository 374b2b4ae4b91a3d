"""Shell, custom and apply-patch calls and a hosted tool's question, on a real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from native_worker import build_flow
from openai_run import TESTS

from dex_agents import AgentSessionClient, AgentSnapshot, ToolEffect
from dex_agents.local import open_sessions
from dex_agents.testing import (
    AgentTestStack,
    FileGate,
    InvocationLog,
    StartProcess,
    wait_for_agent_snapshot,
)

SESSION = "session-1"
GATED = ("shell", "look")


class Watching:
    """A session under watch."""

    def __init__(self, sessions: AgentSessionClient) -> None:
        self.sessions = sessions

    async def _wait(self, probe: Any, description: str) -> Any:
        return await wait_for_agent_snapshot(
            self.sessions, SESSION, probe, description=description, timeout=90
        )

    async def question(self, name: str) -> Any:
        return await self._wait(
            lambda s: next((i for i in s.pending_interrupts if i.tool_name == name), None),
            f"the question about {name}",
        )

    async def end(self) -> AgentSnapshot:
        return await self._wait(
            lambda s: s if s.state is not None and s.state.turn_count == 1 else None, "the end"
        )

    async def answer(self, interrupt: Any, approved: bool, words: str | None = None) -> None:
        await self.sessions.resolve_interrupt(
            SESSION, interrupt.interrupt_id, approved=approved, rejection_message=words
        )


def last_input(folder: Path, calls: int) -> list[Any]:
    """What the model was sent last; no call was made twice."""
    entries = InvocationLog(folder / "model.log").entries()
    assert len(entries) == calls
    items: Any = entries[-1].details["input"]
    return items


def body_runs(folder: Path) -> dict[str, int]:
    names = [entry.name for entry in InvocationLog(folder / "tools.log").entries()]
    return {name: names.count(name) for name in set(names)}


async def test_calls_of_every_kind_are_steps_of_the_session(tmp_path: Path) -> None:
    async with open_sessions(build_flow(tmp_path), data_dir=tmp_path / "engine") as app:
        session = Watching(app.sessions())
        await session.sessions.start_session(SESSION, "Restart it.")
        await session.answer(await session.question("apply_patch"), False, "Not now.")
        await session.answer(await session.question("crm.delete_account"), True)
        ended = await session.end()
    assert ended.messages[-1].text == "All done."
    assert ended.usage.model_calls == 3
    assert body_runs(tmp_path) == {"shell": 1, "look": 1}
    items = last_input(tmp_path, 3)
    assert [item["type"] for item in items if "output" in item] == [
        "shell_call_output",
        "custom_tool_call_output",
        "apply_patch_call_output",
    ]
    assert items[-1]["approve"] is True


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_calls_of_every_kind_outlive_their_workers(
    tmp_path: Path, start: StartProcess
) -> None:
    for tool in GATED:
        (tmp_path / f"{tool}.gated").touch()
    async with AgentTestStack(
        tmp_path / "stack",
        [build_flow(tmp_path)],
        "native_worker",
        worker_cwd=TESTS,
        worker_env={"OPERATOR_DIR": str(tmp_path)},
        start=start,
    ) as stack:
        session = Watching(stack.sessions())
        worker = await stack.start_worker()
        await session.sessions.start_session(SESSION, "Restart it.")
        for tool in GATED:
            await FileGate(tmp_path, tool).wait_until_reached()
        worker.kill()
        for tool in GATED:
            FileGate(tmp_path, tool).release()
        worker = await stack.start_worker()
        patch = await session.question("apply_patch")
        assert patch.effect is ToolEffect.UNCLASSIFIED
        await session.answer(patch, True)

        hosted = await session.question("crm.delete_account")
        worker.kill()
        await stack.start_worker()
        await session.answer(hosted, False, "Keep it.")
        ended = await session.end()
    assert ended.state is not None
    assert ended.state.last_turn_error is None
    assert ended.messages[-1].text == "All done."
    assert body_runs(tmp_path) == {"shell": 1, "look": 2, "apply_patch": 1}
    items = last_input(tmp_path, 3)
    outputs = {item["call_id"]: item for item in items if "output" in item}
    assert outputs["n1"]["output"] == "look is done"
    assert outputs["p1"] == {
        "type": "apply_patch_call_output",
        "call_id": "p1",
        "status": "completed",
        "output": "apply_patch is done",
    }
    assert outputs["s1"]["type"] == "shell_call_output"
    assert "not known" in outputs["s1"]["output"][0]["stderr"]
    assert items[-1] == {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": False,
        "reason": "Keep it.",
    }
