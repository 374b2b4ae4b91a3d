"""Runs one session with a runner of ten lines; without the extra, sees the clear refusal."""

from __future__ import annotations

import asyncio
import importlib.util
import sys

from dex_agents import (
    AgentSessionFlow,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    ToolExecutionResult,
    TurnCompleted,
)
from dex_agents.local import EmbeddedEngineMissingError, open_sessions


class Echo:
    """Answers with what the user wrote."""

    def build_user_message(self, text: str) -> FrameworkMessage:
        return FrameworkMessage(MessageRole.USER, '"user"', text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        text = f"echo {turn.messages[-1].text}"
        return TurnCompleted((FrameworkMessage(MessageRole.ASSISTANT, '"answer"', text),))

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        raise AssertionError("the runner asks for no tool")


async def run_session() -> None:
    """Start a session and wait for its first answer."""
    async with open_sessions(AgentSessionFlow(Echo(), flow_type="Echo"), data_dir="data") as app:
        sessions = app.sessions()
        await sessions.start_session("session-1", "smoke")
        async with asyncio.timeout(60):
            while True:
                snapshot = await sessions.get_agent_snapshot("session-1")
                if snapshot.state is not None and snapshot.state.turn_count == 1:
                    break
                await asyncio.sleep(0.05)
        assert snapshot.messages[-1].text == "echo smoke", snapshot


async def see_refusal() -> None:
    """Without the engine a data folder is refused by name, before anything is opened."""
    try:
        async with open_sessions(AgentSessionFlow(Echo(), flow_type="Echo"), data_dir="data"):
            raise AssertionError("a session opened without an engine")
    except EmbeddedEngineMissingError:
        pass


installed = importlib.util.find_spec("dex_embedded") is not None
assert installed == ("embedded" in sys.argv[1:]), "the extra alone brings the engine"
asyncio.run(run_session() if installed else see_refusal())
print("a session answered" if installed else "the missing engine was named")
