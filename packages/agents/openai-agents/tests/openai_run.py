"""What the integration tests share: the scripted provider, an engine, a session to drive."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai_worker import build_flow

from dex_agents import AgentEventType, AgentSessionClient, AgentSnapshot
from dex_agents.local import open_sessions
from dex_agents.testing import (
    EXECUTE_COMPLETED_EVENT,
    AgentTestStack,
    FileGate,
    InvocationLog,
    StartProcess,
    StepHistoryEntry,
    WorkerProcess,
    read_step_history,
    wait_for_agent_snapshot,
)
from dex_agents_testkit.model_server import RunningModelServer, serve_model_script

TESTS = Path(__file__).resolve().parent
SESSION = "session-1"

FIND = {
    "text": "One moment.",
    "tool_calls": [{"name": "find_order", "arguments": {"customer": "3"}}],
}
TO_BILLING = {"tool_calls": [{"handoff": "Billing"}]}
NOTE_AND_REFUND = {
    "tool_calls": [
        {"name": "add_note", "arguments": {"order": "7"}, "call_id": "note"},
        {"name": "refund", "arguments": {"order": "7"}, "call_id": "refund"},
    ]
}
DONE = {"text": "All done."}


class SupportRun:
    """One session of the support agent on a real engine."""

    def __init__(
        self,
        sessions: AgentSessionClient,
        server_address: str,
        model: RunningModelServer,
        folder: Path,
        stack: AgentTestStack | None = None,
    ) -> None:
        self.sessions = sessions
        self.model = model
        self.tools = InvocationLog(folder / "tools.log")
        self._server_address = server_address
        self._folder = folder
        self._stack = stack

    async def start_worker(self) -> WorkerProcess:
        """Start a worker process."""
        assert self._stack is not None, "the worker runs in this process"
        return await self._stack.start_worker()

    def gate(self, tool: str) -> FileGate:
        """Make a tool stop at a gate, after its effect and before its result."""
        (self._folder / f"{tool}.gated").touch()
        return FileGate(self._folder, tool)

    async def start(self, text: str) -> None:
        await self.sessions.start_session(SESSION, text)

    async def send(self, text: str) -> None:
        await self.sessions.send_user_message(SESSION, text)

    async def wait(self, probe: Any, description: str) -> Any:
        return await wait_for_agent_snapshot(
            self.sessions, SESSION, probe, description=description, timeout=90
        )

    async def turns_ended(self, count: int) -> AgentSnapshot:
        return await self.wait(
            lambda s: s if s.state is not None and s.state.turn_count >= count else None,
            f"{count} ended turns",
        )

    async def answer(self, approved: bool, rejection_message: str | None = None) -> None:
        """Answer the one pending approval."""
        interrupt = await self.wait(
            lambda s: next(iter(s.pending_interrupts), None), "a pending approval"
        )
        assert await self.sessions.resolve_interrupt(
            SESSION,
            interrupt.interrupt_id,
            approved=approved,
            rejection_message=rejection_message,
        )

    async def history(self) -> list[StepHistoryEntry]:
        """Steps that completed, in order."""
        entries = await read_step_history(self._server_address, SESSION)
        return [entry for entry in entries if entry.event_type == EXECUTE_COMPLETED_EVENT]

    async def live_text(self, turn_id: str) -> str:
        """Text that was streamed for an ended turn."""
        text, token = "", ""
        while True:
            message = await self.sessions.read_agent_event(SESSION, token)
            token, event = message.resume_token, message.value
            if event.turn_id != turn_id:
                continue
            if event.type is AgentEventType.TEXT_DELTA:
                text += str(event.payload["text"])
            elif event.type is AgentEventType.TURN_COMPLETED:
                return text

    def outputs(self) -> dict[str, Any]:
        """Tool outputs in the last request, by call id."""
        return {
            item["call_id"]: item["output"]
            for item in self.model.requests[-1].body["input"]
            if item.get("type") == "function_call_output"
        }


@asynccontextmanager
async def worker_in_this_process(
    folder: Path, *turns: Mapping[str, Any], keyless: bool = False
) -> AsyncGenerator[SupportRun]:
    """Serve the session from this process: for tests that kill nothing."""
    async with (
        serve_model_script({"turns": list(turns)}) as model,
        open_sessions(
            build_flow(folder, None if keyless else model.base_url), data_dir=folder / "engine"
        ) as app,
    ):
        yield SupportRun(app.sessions(), app.server_address, model, folder)


@asynccontextmanager
async def worker_processes(
    folder: Path, start: StartProcess, *turns: Mapping[str, Any]
) -> AsyncGenerator[SupportRun]:
    """Serve the session from processes that a test starts and kills."""
    async with (
        serve_model_script({"turns": list(turns)}, gates_dir=folder) as model,
        AgentTestStack(
            folder / "stack",
            [build_flow(folder, model.base_url)],
            "openai_worker",
            worker_cwd=TESTS,
            worker_env={"SUPPORT_STATE_DIR": str(folder), "SUPPORT_MODEL_URL": model.base_url},
            start=start,
        ) as stack,
    ):
        yield SupportRun(stack.sessions(), stack.server_address, model, folder, stack)
