"""What a turn costs the engine, as exact numbers: a regression shows as a number that went up.

The numbers are those of a session whose worker has served it before. Where a change makes one
smaller, lower it here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from engine_counts import EngineCounts, counted_engine

from dex_agents import AgentSessionClient
from dex_agents.local import open_sessions
from dex_agents_testkit import scripted_session_flow
from dex_embedded._runtime import dispatcher

SCRIPT = {
    "turn_in_message": True,
    "tools": {
        "look_up": {"effect": "read", "output": "order $order is paid"},
        "refund": {
            "effect": "non_idempotent_write",
            "requires_approval": False,
            "output": "refunded $order",
        },
    },
}


def turn(*tools: str, answer: str = "Done.") -> str:
    """A message that has its turn call tools, all in one batch, and then answer."""
    calls = [
        {"id": f"c{number}", "name": name, "arguments": {"order": "7"}}
        for number, name in enumerate(tools)
    ]
    replies: list[Any] = [{"tool_calls": calls}] if calls else []
    return json.dumps({"replies": [*replies, {"message": answer}]})


COLUMNS = (
    "task frames",
    "frames from workers",
    "client calls",
    "stream messages",
    "transitions",
    "commits",
    "statements written",
    "statements read",
)
COSTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "an answer": (turn(), (4, 8, 1, 4, 7, 7, 53, 1)),
    "a read, then an answer": (turn("look_up"), (8, 17, 1, 8, 15, 15, 111, 1)),
    "a single-attempt call, then an answer": (turn("refund"), (8, 17, 1, 8, 15, 15, 110, 1)),
    "three reads at once, then an answer": (
        turn("look_up", "look_up", "look_up"),
        (10, 27, 1, 14, 19, 19, 149, 1),
    ),
}
"""What a turn does, and at most how many of what it costs. Steps and RPCs are task frames. Commits
are at most transitions: how many share one depends on the machine."""


@contextlib.asynccontextmanager
async def counted_sessions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[EngineCounts, AgentSessionClient]]:
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    flow = scripted_session_flow(script, folder / "state")
    async with (
        counted_engine(folder / "data", monkeypatch) as counts,
        open_sessions(flow, server_address=counts.address) as app,
    ):
        yield counts, app.sessions()


async def test_a_turn_costs_no_more_than_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted_sessions(tmp_path, monkeypatch) as (counts, sessions):
        for number, (what, (message, most)) in enumerate(COSTS.items()):
            session_id = f"s-{number}"
            await sessions.start_session(session_id, message)
            await counts.at_rest(session_id)
            await sessions.send_user_message(session_id, message)
            await counts.at_rest(session_id)
            costs: list[dict[str, int]] = []
            for _ in range(3):
                counts.reset()
                await sessions.send_user_message(session_id, message)
                await counts.at_rest(session_id)
                costs.append({name: counts.seen[name] for name in COLUMNS})
            # The least of three: a worker that is slow to tidy up declines a task.
            cost = {name: min(each[name] for each in costs) for name in COLUMNS}
            too_many = {
                name: f"{cost[name]} instead of {bound}"
                for name, bound in zip(COLUMNS, most, strict=True)
                if cost[name] > bound
            }
            assert not too_many, f"{what}: {too_many}"
            assert cost["task frames"], "the counters count nothing"


async def test_no_stream_is_opened_for_a_task_while_sessions_are_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A task that takes long gets a stream of its own, and a busy machine makes all tasks long.
    monkeypatch.setattr(dispatcher, "LONG_TASK", 3_600.0)
    async with counted_sessions(tmp_path, monkeypatch) as (counts, sessions):
        ids = [f"s-{number}" for number in range(4)]
        message = turn("look_up", "refund")
        for session_id in ids:
            await sessions.start_session(session_id, message)
            await counts.at_rest(session_id)
        counts.reset()
        opened = counts.streams_opened
        for _ in range(6):
            await asyncio.gather(*(sessions.send_user_message(each, message) for each in ids))
            for session_id in ids:
                await counts.at_rest(session_id)
        opened = counts.streams_opened - opened
        tasks = counts.seen["task frames"]
        assert tasks >= 200
        assert opened <= tasks // 50, f"{opened} streams for {tasks} tasks"


async def test_a_task_carries_no_more_when_its_session_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted_sessions(tmp_path, monkeypatch) as (counts, sessions):
        message = turn("look_up", answer="x" * 2_000)

        async def largest(turns: int) -> dict[str, int]:
            counts.reset()
            for _ in range(turns):
                await sessions.send_user_message("s", message)
                await counts.at_rest("s")
            return {name: max(sizes) for name, sizes in counts.task_bytes.items()}

        await sessions.start_session("s", message)
        await counts.at_rest("s")
        await largest(8)
        early = await largest(4)
        await largest(24)
        late = await largest(4)
        assert set(early) == set(late) == {"AwaitUserMessage", "RunModel", "CallTool", "ResumeTurn"}
        for name, size in late.items():
            assert size <= early[name] + 1_000, f"{name}: {size} bytes instead of {early[name]}"
