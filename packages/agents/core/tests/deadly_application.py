"""An application with its engine inside, one of whose tools ends the process as soon as it runs.

`python deadly_application.py FOLDER` goes on until the turn of its one session is over; each run of
the tool adds a line to FOLDER/runs before it ends everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from dex_agents import (
    AgentSessionFlow,
    AgentSessionOptions,
    DeferredToolExecution,
    SessionAlreadyExistsError,
    ToolEffect,
    ToolExecutionResult,
)
from dex_agents.local import open_sessions
from dex_agents.testing import wait_for_agent_snapshot
from dex_agents_testkit import ScriptedRunner, parse_runner_script

SCRIPT = {
    "tools": {"look_up": {"effect": "read", "output": "never told"}},
    "turns": [
        {
            "replies": [
                {"tool_calls": [{"id": "c1", "name": "look_up", "arguments": {}}]},
                {"message": "I could not look that up."},
            ]
        }
    ],
}


class DeadlyRunner(ScriptedRunner):
    """Ends its process with every tool call."""

    def __init__(self, runs: Path) -> None:
        super().__init__(parse_runner_script(SCRIPT))
        self._runs = runs

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        with self._runs.open("a") as lines:
            lines.write(f"attempt {call.attempt}\n")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody is left to get here")


async def run(folder: Path) -> None:
    options = AgentSessionOptions(default_tool_effect=ToolEffect.READ)
    flow = AgentSessionFlow(DeadlyRunner(folder / "runs"), flow_type="Deadly", options=options)
    async with open_sessions(flow, data_dir=folder / "data") as app:
        with contextlib.suppress(SessionAlreadyExistsError):
            await app.sessions().start_session("session-1", "look it up")
        snapshot = await wait_for_agent_snapshot(
            app.sessions(), "session-1", lambda s: s if s.state and s.state.turn_count else None
        )
        print(snapshot.messages[-1].text)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
