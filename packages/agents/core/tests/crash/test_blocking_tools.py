"""A tool that blocks the event loop for longer than the engine waits for a sign of life."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crashing_agent import (
    BLOCK_VARIABLE,
    FREEZING,
    HEARTBEAT_VARIABLE,
    RESUMED_BEFORE,
    THREADED,
    TOOL_AFTER,
    UNKNOWN,
)
from crashing_stack import CrashingStack, tool_texts

from dex_agents.testing import StartProcess

HEARTBEAT_TIMEOUT = 2
BLOCKED = 10


def script() -> dict[str, Any]:
    """Every session asks for the tool that its message names."""
    write = {"effect": "non_idempotent_write", "requires_approval": False}
    return {
        "turn_in_message": True,
        "tools": {
            FREEZING: {**write, "output": "frozen $card"},
            THREADED: {**write, "output": "done in a thread"},
            "pay": {**write, "output": "paid"},
            "look": {"effect": "read", "output": "seen"},
        },
    }


def turn(tool: str) -> str:
    arguments = '{"card": "4711"}'
    call = f'{{"id": "c1", "name": "{tool}", "arguments": {arguments}}}'
    return f'{{"replies": [{{"tool_calls": [{call}]}}, {{"message": "end"}}]}}'


@pytest.mark.requirement("CORE-TOOL-16", "CORE-TOOL-19")
async def test_a_tool_that_blocks_its_worker_runs_once_and_costs_the_others_no_more_than_time(
    tmp_path: Path,
    start: StartProcess,
) -> None:
    """Each session is at another place of its turn when the loop of their worker stands still."""
    reading, paying, resuming = TOOL_AFTER, "tool.inside", RESUMED_BEFORE
    async with CrashingStack(
        tmp_path,
        script(),
        start,
        {HEARTBEAT_VARIABLE: str(HEARTBEAT_TIMEOUT), BLOCK_VARIABLE: str(BLOCKED)},
        engine_env={"DEX_EMBEDDED_MINIMUM_HEARTBEAT": "1"},
    ) as stack:
        worker = await stack.start_worker()
        sessions = stack.sessions()
        for session_id, tool in ((reading, "look"), (paying, "pay"), (resuming, "look")):
            await sessions.start_session(session_id, turn(tool))
            await stack.gate(session_id).wait_until_reached()
        await sessions.start_session("threaded", turn(THREADED))
        await sessions.start_session("freezing", turn(FREEZING))
        for session_id in (reading, paying, resuming):
            stack.gate(session_id).release()
        texts: dict[str, str] = {}
        for session_id in ("freezing", "threaded", reading, paying, resuming):
            snapshot = await stack.turn_ended(session_id, 1)
            assert snapshot.state is not None
            assert snapshot.state.last_turn_error is None
            (texts[session_id],) = tool_texts(snapshot.messages)
        assert worker.is_running

        # The write that blocked ran once, and nothing is told about it that is not known.
        assert len(stack.details(FREEZING, "freezing")) == 1
        assert texts["freezing"].startswith(UNKNOWN)
        # What may run again did, and a model call was repeated at most.
        assert texts[reading] == texts[resuming] == "seen"
        assert len(stack.details("look", reading)) <= 3
        assert len(stack.details("run_model_step", resuming)) <= 4
        # Another write of this worker gave no sign of life either, so it is not known, or done.
        assert len(stack.details("pay", paying)) <= 1
        assert texts[paying].startswith(UNKNOWN) or texts[paying] == "paid"
        assert len(stack.details(THREADED, "threaded")) == 1
        for session_id in ("freezing", paying):
            await sessions.send_user_message(session_id, turn("look"))
            await stack.turn_ended(session_id, 2)
        lines = [line for line in worker.output().splitlines() if "blocked" in line]

    assert any(f"tool '{FREEZING}' (call 'c1') in session 'freezing'" in line for line in lines)
    assert "4711" not in worker.output()


@pytest.mark.crash
@pytest.mark.requirement("CORE-TOOL-19")
async def test_a_tool_that_blocks_in_a_thread_outlives_the_heartbeat_timeout(
    tmp_path: Path,
    start: StartProcess,
) -> None:
    async with CrashingStack(
        tmp_path,
        script(),
        start,
        {HEARTBEAT_VARIABLE: str(HEARTBEAT_TIMEOUT), BLOCK_VARIABLE: str(BLOCKED)},
        engine_env={"DEX_EMBEDDED_MINIMUM_HEARTBEAT": "1"},
    ) as stack:
        await stack.start_worker()
        await stack.sessions().start_session("s", turn(THREADED))
        snapshot = await stack.turn_ended("s", 1)
        assert tool_texts(snapshot.messages) == ["done in a thread"]
        assert [entry["attempt"] for entry in stack.details("attempt", "s")] == [1]
