"""Approvals and failures over the death of engine, worker and client, on the scripted runner."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from crashing_agent import FLOW_TYPE
from crashing_stack import CrashingStack, tool_texts

from dex_agents import AgentSessionClient, AgentSnapshot
from dex_agents.local import open_sessions
from dex_agents.testing import StartProcess, wait_for_agent_snapshot

CRASH = {"kind": "exception", "attempts": 1000, "message": "the model is gone"}


def call(number: int, name: str) -> dict[str, Any]:
    return {"id": f"c{number}", "name": name, "arguments": {"order": str(6 + number)}}


SCRIPT: dict[str, Any] = {
    "tools": {
        "refund": {"effect": "non_idempotent_write", "output": "refunded $order"},
        "search": {"effect": "read", "output": "found $order"},
    },
    "turns": [
        {
            "replies": [
                {"tool_calls": [call(1, "refund"), call(2, "refund"), call(3, "refund")]},
                {"message": "three answered"},
            ]
        },
        {
            "replies": [
                {"tool_calls": [call(1, "search"), call(2, "refund"), call(3, "refund")]},
                {"message": "never said", "failures": [CRASH]},
            ]
        },
        {"replies": [{"message": "and now this"}]},
    ],
}


@asynccontextmanager
async def another_client(stack: CrashingStack) -> AsyncGenerator[AgentSessionClient]:
    """Open a client that knows no more than the address, the Flow's name and the session's id."""
    async with open_sessions(FLOW_TYPE, server_address=stack.server_address, serve=False) as app:
        yield app.sessions()


async def restart_everything(stack: CrashingStack) -> None:
    stack.engine.kill()
    for worker in stack.workers:
        worker.kill()
    await stack.engine.restart()
    await stack.start_worker()


async def pending(client: AgentSessionClient, count: int) -> AgentSnapshot:
    """Wait until so many questions are open."""
    return await wait_for_agent_snapshot(
        client, "s", lambda s: s if len(s.pending_interrupts) == count else None, timeout=120
    )


async def resolve(stack: CrashingStack, call_id: str, *, approved: bool, left: int) -> None:
    """Answer one question from a client of its own, and see that it is gone."""
    async with another_client(stack) as client:
        snapshot = await pending(client, left + 1)
        (interrupt,) = (i for i in snapshot.pending_interrupts if i.tool_call_id == call_id)
        message = None if approved else "not this one"
        assert await client.resolve_interrupt(
            "s", interrupt.interrupt_id, approved=approved, rejection_message=message
        )
        assert len((await pending(client, left)).pending_interrupts) == left


@pytest.mark.crash
@pytest.mark.requirement("CORE-APPROVAL-10", "CORE-APPROVAL-11", "CORE-FAIL-10")
async def test_each_answer_reaches_its_call_over_restarts_and_a_failed_turn_repeats_nothing(
    tmp_path: Path,
    start: StartProcess,
) -> None:
    async with CrashingStack(tmp_path, SCRIPT, start) as stack:
        await stack.start_worker()
        await stack.sessions().start_session("s", "one")
        await pending(stack.sessions(), 3)
        await restart_everything(stack)

        # Three calls of one tool, answered out of order, each by another client.
        async with another_client(stack) as client:
            snapshot = await pending(client, 3)
            assert [
                (i.tool_call_id, i.tool_name, i.arguments, i.effect.value)
                for i in snapshot.pending_interrupts
            ] == [
                (f"c{n}", "refund", f'{{"order": "{6 + n}"}}', "non_idempotent_write")
                for n in (1, 2, 3)
            ]
            deadlines = [i.deadline for i in snapshot.pending_interrupts]
            assert all(deadline is not None for deadline in deadlines)
        await resolve(stack, "c3", approved=True, left=2)
        await resolve(stack, "c2", approved=False, left=1)
        await restart_everything(stack)
        await resolve(stack, "c1", approved=True, left=0)
        snapshot = await stack.turn_ended("s", 1)
        texts = tool_texts(snapshot.messages)
        assert (texts[0], texts[2]) == ("refunded 7", "refunded 9")
        assert "not this one" in texts[1]
        orders = sorted(entry["arguments"]["order"] for entry in stack.details("refund", "s"))
        assert orders == ["7", "9"]

        # A mixed batch: the read runs at once, each refund after its answer; then the turn fails.
        await stack.sessions().send_user_message("s", "two")
        await pending(stack.sessions(), 2)
        await resolve(stack, "c2", approved=True, left=1)
        await wait_for_agent_snapshot(
            stack.sessions(),
            "s",
            lambda s: [c.tool_call_id for c in s.tool_calls if c.status.is_final] == ["c1", "c2"],
        )
        await resolve(stack, "c3", approved=True, left=0)
        failed = await stack.turn_ended("s", 2)
        assert failed.state is not None
        assert "the model is gone" in (failed.state.last_turn_error or "")
        note = failed.messages[-1].text
        for n, text in ((1, "found 7"), (2, "refunded 8"), (3, "refunded 9")):
            assert f'{{"order": "{6 + n}"}} -> succeeded: {text}' in note
        await stack.sessions().send_user_message("s", "and now?")
        snapshot = await stack.turn_ended("s", 3)
        asked = stack.details("run_model_step", "s", "turn-3")

    assert snapshot.messages[-1].text == "and now this"
    assert snapshot.pending_interrupts == ()
    # The model of the next turn has read the note, and no refund was repeated.
    assert note in [text for _, _, text in asked[-1]["messages"]]
    assert len(stack.details("search", "s", "turn-2")) == 1
    assert len(stack.details("refund", "s", "turn-2")) == 2
    assert deadlines[0] is not None
    assert deadlines[0].utcoffset() == timedelta(0)
