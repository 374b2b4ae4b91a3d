"""A garbage collector that runs all the time takes nothing that is still needed."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from session_harness import FunctionRunner, answer, ask, outcomes, running_session, tool_call

from dex_agents import (
    AgentEventType,
    AgentSessionOptions,
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    StepLimits,
    ToolEffect,
)

PAUSE = 0.01
DELTAS = 20


@contextmanager
def collecting() -> Generator[None]:
    """Collect garbage every 10 ms."""
    over = threading.Event()

    def collect() -> None:
        while not over.wait(PAUSE):
            gc.collect()

    # What is there already is not looked at, so that a collection is quick and finds what is new.
    gc.collect()
    gc.freeze()
    thread = threading.Thread(target=collect, name="collector")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        gc.unfreeze()


async def model(turn: AgentTurnContext) -> AgentTurnOutcome:
    """Stream; in some turns ask for a slow tool, or for one that nobody approves in time."""
    if turn.is_resuming:
        return answer(" ".join(outcomes(turn)))
    for number in range(DELTAS):
        turn.events.write_text_delta(f"{number} ")
        if number % 5 == 0:
            await asyncio.sleep(0.001)
    match turn.messages[-1].text:
        case "slow":
            return ask(tool_call("c1", "slow", ToolEffect.NON_IDEMPOTENT_WRITE, "{}", False))
        case "late":
            return ask(tool_call("c1", "late", ToolEffect.READ, "{}", True))
        case _:
            return answer("".join(f"{number} " for number in range(DELTAS)))


async def slow_tool(call: DeferredToolExecution) -> str:
    """Take longer than the heartbeat timeout."""
    await asyncio.sleep(3)
    return "slow but done"


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param(5, id="short"),
        pytest.param(200, id="full", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.skipif("DEXCLI" in os.environ, reason="needs a short heartbeat timeout")
async def test_events_heartbeats_and_deadlines_outlive_every_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setenv("DEX_EMBEDDED_MINIMUM_HEARTBEAT", "1")
    options = AgentSessionOptions(
        interrupt_deadline=timedelta(seconds=1),
        tool_limits=StepLimits(heartbeat_timeout=timedelta(seconds=2)),
    )
    texts = ["slow", "late", *(f"turn {n}" for n in range(turns))]
    with collecting():
        async with running_session(tmp_path, FunctionRunner(model, slow_tool), options) as session:
            await session.start()
            for number, text in enumerate(texts, 1):
                await session.send(text)
                snapshot = await session.turn_ended(number)
                assert snapshot.state is not None
                assert snapshot.state.last_turn_error is None
            last = f"turn-{len(texts)}"
            events = await session.events_until(AgentEventType.TURN_COMPLETED, last)
            page = await session.client.list_agent_messages(session.session_id, 0, 4)
    answers = [message.text for message in page.messages][1::2]
    assert answers[0] == "slow but done"
    assert "did not approve" in answers[1]
    for number in range(1, len(texts) + 1):
        deltas = [
            str(event.payload["text"])
            for event in events
            if (event.type, event.turn_id) == (AgentEventType.TEXT_DELTA, f"turn-{number}")
        ]
        assert "".join(deltas) == "".join(f"{n} " for n in range(DELTAS))
