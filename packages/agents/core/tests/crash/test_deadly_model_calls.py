"""A model call that kills its worker every time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import string
from pathlib import Path
from typing import Any

import pytest
from crashing_stack import CrashingStack

from dex_agents import AgentSnapshot
from dex_agents.testing import ChildProcessError, StartProcess, wait_until


def noise(length: int) -> str:
    """Return text that does not compress."""
    return "".join(random.Random(7).choices(string.ascii_letters, k=length))


async def keep_one_worker(stack: CrashingStack) -> None:
    """Start another worker whenever the newest one has died, until cancelled."""
    while True:
        # It may get the deadly task before it could tell that it is ready.
        with contextlib.suppress(ChildProcessError):
            await stack.start_worker()
        await stack.workers[-1].wait(timeout=150)


@pytest.mark.requirement("CORE-FAIL-15")
@pytest.mark.parametrize(
    "first_answer",
    [
        pytest.param(700_000, id="loaded in parts"),
        pytest.param(100, id="short history", marks=pytest.mark.crash),
    ],
)
async def test_a_deadly_model_call_is_paid_three_times_and_the_session_goes_on(
    tmp_path: Path, start: StartProcess, first_answer: int
) -> None:
    """A cold worker hands the Step on when the history is long, which is no try of its own."""
    crash = {"kind": "crash", "attempts": 1000}
    script: dict[str, Any] = {
        "tools": {"look": {"output": "seen"}},
        "turns": [
            {"replies": [{"message": noise(first_answer)}]},
            {
                "replies": [
                    {"tool_calls": [{"id": "c1", "name": "look"}]},
                    {"message": "never said", "failures": [crash]},
                ]
            },
            {"replies": [{"message": "still here"}]},
        ],
    }
    async with CrashingStack(tmp_path, script, start) as stack:
        keeping = asyncio.create_task(keep_one_worker(stack))
        try:
            sessions = stack.sessions()
            await wait_until("a worker", lambda: stack.workers)
            await sessions.start_session("s", "one")
            await stack.turn_ended("s", 1)
            await sessions.send_user_message("s", "two")
            failed = await stack.turn_ended("s", 2)
            await sessions.send_user_message("s", "three")
            snapshot = await stack.turn_ended("s", 3)
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
        calls = stack.details("run_model_step", "s", "turn-2")

    assert [(call["reply"], call["attempt"]) for call in calls] == [(1, 1), (2, 1), (2, 2), (2, 3)]
    assert len(stack.workers) == 4
    check_failure(failed)
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error is None
    assert snapshot.messages[-1].text == "still here"


def check_failure(snapshot: AgentSnapshot) -> None:
    """The turn failed, and its finished call is told to the next turn's model."""
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error
    assert "look {} -> succeeded: seen" in snapshot.messages[-1].text
