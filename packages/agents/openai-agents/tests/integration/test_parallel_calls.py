"""Many tool calls of one response, on an engine of its own and next to sessions that are busy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from agents import Agent, function_tool
from agents.testing import ModelCall, ModelStep, ScriptedModel
from stepped_session import call, response, says

from dex_agents import AgentSessionClient, AgentSessionFlow, AgentSnapshot, ToolEffect, ToolPolicy
from dex_agents.local import open_sessions
from dex_agents.testing import create_engine, wait_for_agent_snapshot
from dex_agents_openai_agents import openai_agents_session_flow

PARALLEL_CALLS = 80
BUSY_SESSIONS = 4
LONGEST_GAP = 1.0


@function_tool
async def ping(x: int) -> str:
    """Answer."""
    return f"pong {x}"


def asking_for(calls: int, flow_type: str) -> AgentSessionFlow:
    """Sessions whose turns each ask for so many calls at once, and then end."""
    numbers = itertools.count()

    async def answer(request: ModelCall) -> ModelStep:
        number = next(numbers)
        last = request.input[-1] if isinstance(request.input, list) else {"role": "user"}
        if dict(last).get("role") == "user":
            return response(*(call("ping", f"c{number}_{x}", x=x) for x in range(calls)))
        return response(says("done", f"m{number}"))

    model = ScriptedModel([ModelStep.respond(answer)] * 10_000)
    agent = Agent(name=flow_type, model=model, tools=[ping])
    policies = {"ping": ToolPolicy(ToolEffect.READ)}
    return openai_agents_session_flow(agent, flow_type=flow_type, tool_policies=policies)


async def turn_of(sessions: AgentSessionClient, session_id: str, number: int) -> AgentSnapshot:
    if number == 1:
        await sessions.start_session(session_id, "go")
    else:
        await sessions.send_user_message(session_id, "go")
    snapshot = await wait_for_agent_snapshot(
        sessions, session_id, lambda s: s if s.state and s.state.turn_count >= number else None
    )
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error is None
    return snapshot


@contextlib.asynccontextmanager
async def gaps_of_this_loop() -> AsyncGenerator[list[float]]:
    """Yields the seconds by which each tick of this event loop, also the worker's, came late."""
    gaps: list[float] = []

    async def tick() -> None:
        pause = 0.01
        while True:
            before = time.perf_counter()
            await asyncio.sleep(pause)
            gaps.append(time.perf_counter() - before - pause)

    ticking = asyncio.create_task(tick())
    try:
        yield gaps
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])


@pytest.mark.soak
async def test_case_10_a_worker_with_many_parallel_calls_leaves_no_second_without_a_heartbeat(
    tmp_path: Path,
) -> None:
    engine = create_engine(tmp_path / "data", tmp_path / "logs")
    await engine.start()
    flows = [asking_for(PARALLEL_CALLS, "Many"), asking_for(2, "Busy")]
    try:
        async with (
            open_sessions(flows, server_address=engine.address, max_concurrent_tasks=128) as app,
            gaps_of_this_loop() as gaps,
        ):

            async def be_busy(session_id: str) -> None:
                for number in itertools.count(1):
                    await turn_of(app.sessions("Busy"), session_id, number)

            async with asyncio.TaskGroup() as others:
                busy = [others.create_task(be_busy(f"b{n}")) for n in range(BUSY_SESSIONS)]
                snapshot = await turn_of(app.sessions("Many"), "many", 1)
                for task in busy:
                    task.cancel()
            print(f"{PARALLEL_CALLS} calls: the worker's loop was {max(gaps):.3f} s late at most")
            assert len(snapshot.messages) == 2 * PARALLEL_CALLS + 2
            assert max(gaps) < LONGEST_GAP
    finally:
        await engine.stop()
