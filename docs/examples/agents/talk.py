"""Talks to the agent of an example from the terminal.

With `OPENAI_API_KEY` set, the real model answers. Without one, the example's script in `scripts/`
does, so every example runs as it is.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from dex_agents import AgentEventType, AgentSessionClient, AgentSessionFlow
from dex_agents.local import open_sessions
from dex_agents_testkit.model_server import load_model_script, serve_model_script

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[2] / ".demo" / "examples"


async def talk(flow: AgentSessionFlow, *messages: str, data_dir: Path = DATA) -> None:
    """Say these messages to a new session, one after the other, and print what happens.

    Args:
        flow: The flow of the example.
        messages: What the user says. The next one is sent when the turn before it has ended.
        data_dir: Where the embedded engine keeps the session.
    """
    async with AsyncExitStack() as stack:
        if "OPENAI_API_KEY" not in os.environ:
            script = load_model_script(HERE / "scripts" / f"{Path(sys.argv[0]).stem}.json")
            model = await stack.enter_async_context(serve_model_script(script))
            os.environ.update(OPENAI_API_KEY="unused", OPENAI_BASE_URL=model.base_url)
            os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
        app = await stack.enter_async_context(open_sessions(flow, data_dir=data_dir))
        sessions = app.sessions()
        session_id = f"{flow.get_flow_type()}-{time.strftime('%Y%m%d-%H%M%S')}"
        token = ""
        for number, message in enumerate(messages):
            print(f"You: {message}")
            if number == 0:
                await sessions.start_session(session_id, message)
            else:
                await sessions.send_user_message(session_id, message)
            token = await _follow_turn(sessions, session_id, token)


async def _follow_turn(sessions: AgentSessionClient, session_id: str, token: str) -> str:
    """Print the events of a turn, ask about approvals, and return where the next turn begins."""
    while True:
        read = await sessions.read_agent_event(session_id, token)
        token, event = read.resume_token, read.value
        match event.type:
            case AgentEventType.TEXT_DELTA:
                print(event.payload["text"], end="", flush=True)
            case AgentEventType.TOOL_CALL_DEFERRED:
                print(f"[calls {event.payload['tool_name']}]")
            case AgentEventType.INTERRUPT_RAISED:
                await _ask(sessions, session_id)
            case AgentEventType.TURN_COMPLETED:
                print()
                return token
            case AgentEventType.TURN_FAILED:
                snapshot = await sessions.get_agent_snapshot(session_id)
                print(f"[failed: {snapshot.state and snapshot.state.last_turn_error}]")
                return token
            case _:
                pass


async def _ask(sessions: AgentSessionClient, session_id: str) -> None:
    snapshot = await sessions.get_agent_snapshot(session_id)
    for interrupt in snapshot.pending_interrupts:
        question = f"Let {interrupt.tool_name} run with {interrupt.arguments}? [y/n] "
        answer = await asyncio.to_thread(input, question)
        await sessions.resolve_interrupt(
            session_id, interrupt.interrupt_id, approved=answer.strip().lower().startswith("y")
        )
