"""A session that nobody talks to for a long time."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from session_harness import FunctionRunner, RunningSession, answer, ask, running_session, tool_call

from dex_agents import (
    AgentSessionOptions,
    AgentTurnContext,
    AgentTurnOutcome,
    ToolCallStatus,
    ToolEffect,
)

CLOCKS = ("_message_steps", "_model_step", "_tool_steps", "_flow")


def set_clock(monkeypatch: pytest.MonkeyPatch, ahead: timedelta) -> None:
    """Let the worker's clock differ from that of the machine."""
    for module in CLOCKS:
        monkeypatch.setattr(
            f"dex_agents.session_flow.{module}.utc_now", lambda: datetime.now(UTC) + ahead
        )


def model(turn: AgentTurnContext) -> AgentTurnOutcome:
    if turn.messages[-1].text == "pay" and not turn.is_resuming:
        return ask(tool_call("c1", "pay", ToolEffect.NON_IDEMPOTENT_WRITE))
    return answer(f"{len(turn.messages)} messages")


@pytest.mark.requirement("CORE-APPROVAL-13")
async def test_a_message_after_a_long_pause_is_answered_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engine and worker start anew each time, months later and then years earlier."""
    for number, days in enumerate((0, 100, 100 - 5 * 365), 1):
        set_clock(monkeypatch, timedelta(days=days))
        async with running_session(tmp_path, FunctionRunner(model)) as session:
            if number == 1:
                await session.start()
            await session.send(f"message {number}")
            snapshot = await session.turn_ended(number)
            assert snapshot.messages[-1].text == f"{2 * number - 1} messages"
            age = snapshot.messages[-1].created_at - datetime.now(UTC)
            assert abs(age - timedelta(days=days)) < timedelta(hours=1)


@pytest.mark.requirement("CORE-APPROVAL-06", "CORE-APPROVAL-11", "CORE-APPROVAL-13")
async def test_a_deadline_that_passes_while_nothing_runs_is_kept_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = AgentSessionOptions(interrupt_deadline=timedelta(seconds=2))
    runner = FunctionRunner(model)
    async with running_session(tmp_path, runner, options) as session:
        await session.start("pay")
        await session.interrupts(1)
    set_clock(monkeypatch, timedelta(days=3))
    async with running_session(tmp_path, runner, options) as session:
        snapshot = await session.turn_ended(1)
        assert snapshot.pending_interrupts == ()
        await session.send("still there?")
        snapshot = await session.turn_ended(2)
    assert runner.executions == []
    assert runner.turns[-2].tool_calls["c1"].status is ToolCallStatus.REJECTED
    assert snapshot.messages[-1].text == "3 messages"


def stored_bytes(data: Path) -> int:
    return sum(path.stat().st_size for path in data.iterdir() if path.is_file())


async def run_turns(session: RunningSession, first: int, count: int, data: Path) -> float:
    """Run turns, and return by how many bytes each of them made the data grow."""
    before = stored_bytes(data)
    for number in range(first, first + count):
        await session.send(f"message {number}")
        await session.turn_ended(number)
    return (stored_bytes(data) - before) / count


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_ten_thousand_turns_grow_the_data_by_the_same_amount_each(tmp_path: Path) -> None:
    """Bounded by `DEX_SOAK_MINUTES`; a fifth of the turns at a time, so that the end is seen."""
    ends_at = time.monotonic() + 60 * float(os.environ.get("DEX_SOAK_MINUTES", "5"))
    block, turns = 500, 0
    growth: list[float] = []
    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await session.start()
        while turns < 10_000 and time.monotonic() < ends_at:
            growth.append(await run_turns(session, turns + 1, block, tmp_path))
            turns += block
    print(f"{turns} turns; bytes a turn, by blocks of {block}: {[round(g) for g in growth]}")
    assert len(growth) >= 3, "there was time for a few blocks only"
    assert max(growth[1:]) < 2 * growth[1] + 4096
