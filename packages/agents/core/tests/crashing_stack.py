"""A test stack whose workers serve the agent that dies at named places."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crashing_agent import STATE_VARIABLE, build_flow, calls_log

from dex_agents import AgentMessage, AgentSnapshot, MessageRole
from dex_agents.testing import (
    AgentTestStack,
    FileGate,
    InvocationLog,
    StartProcess,
    wait_for_agent_snapshot,
)

HERE = Path(__file__).resolve().parent


class CrashingStack(AgentTestStack):
    """The stack of one script.

    Args:
        state_dir: Folder of everything.
        script: What the model says and the tools do.
        start: How engine and workers are started.
        worker_env: Variables added to the environment of the workers.
        engine_env: Variables added to the environment of the engine.
    """

    def __init__(
        self,
        state_dir: Path,
        script: Mapping[str, Any],
        start: StartProcess,
        worker_env: Mapping[str, str] | None = None,
        engine_env: Mapping[str, str] | None = None,
    ) -> None:
        (state_dir / "script.json").write_text(json.dumps(script), encoding="utf-8")
        super().__init__(
            state_dir,
            [build_flow(script, state_dir)],
            "crashing_worker",
            worker_cwd=HERE,
            worker_env={STATE_VARIABLE: str(state_dir), **(worker_env or {})},
            engine_env=engine_env,
            start=start,
        )

    @property
    def log(self) -> InvocationLog:
        """Everything that the workers have done."""
        return calls_log(self.state_dir)

    def gate(self, place: str) -> FileGate:
        """The gate at which the session of that name waits."""
        return FileGate(self.state_dir, place)

    def details(self, name: str, session_id: str, turn: str = "turn-1") -> list[Mapping[str, Any]]:
        """Return what was recorded under a name for one turn of one session, in order."""
        return [
            entry.details
            for entry in self.log.entries(name)
            if (entry.details["flow_id"], entry.details["turn_id"]) == (session_id, turn)
        ]

    async def turn_ended(
        self, session_id: str, number: int, timeout: float = 120, interval: float = 0.05
    ) -> AgentSnapshot:
        """Wait for the end of a turn, over whatever downtime there is."""
        return await wait_for_agent_snapshot(
            self.sessions(),
            session_id,
            lambda s: (
                s if s.state and s.state.turn_count >= number and not s.state.turn_id else None
            ),
            description=f"the end of turn {number}",
            timeout=timeout,
            interval=interval,
        )


def tool_texts(messages: Sequence[AgentMessage], turn: str = "turn-1") -> list[str]:
    """Return what the model has read as the results of a turn's calls, in order."""
    return [m.text for m in messages if (m.role, m.turn_id) == (MessageRole.TOOL, turn)]
