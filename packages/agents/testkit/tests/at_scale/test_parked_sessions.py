"""Very many sessions on one data file, nearly all of which are waiting for somebody.

A few hundred real sessions are taken through a turn, and their rows repeated until there are as
many as wanted. Half of them have a call that waits for an approval with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from dex.dexpb import dex_pb2, dex_pb2_grpc
from engine_testing.cloning import clone_runs
from engine_testing.virtual_time import work_at_rest
from process_facts import MIB, cpu_seconds_of, memory_of, needs_proc

from dex_agents import AgentSessionClient, AgentSessionFlow, AgentSessionOptions
from dex_agents.local import open_sessions
from dex_agents.testing import EngineProcess, create_engine, wait_for_agent_snapshot, wait_until
from dex_agents_testkit import scripted_log, scripted_session_flow
from dex_embedded._store.check import check_file

MEMORY_BOUND = 500 * MIB
START_BOUND = 1.5
"""Seconds of CPU that an engine may need more for its first answer than one without any data. By
the clock it would count what other processes do, too; that is printed."""
AT_A_TIME = 16

SCRIPT = {
    "turn_in_message": True,
    "tools": {"refund": {"effect": "non_idempotent_write", "output": "refunded $order"}},
}
SAYS_HELLO = json.dumps({"replies": [{"message": "Hello."}]})
ASKS = json.dumps(
    {
        "replies": [
            {"tool_calls": [{"id": "c1", "name": "refund", "arguments": {"order": "7"}}]},
            {"message": "Done."},
        ]
    }
)
SAYS_MORE = json.dumps({"replies": [{"message": "Still here."}]})


@dataclass(frozen=True)
class Size:
    """How many sessions there are, how many of them were really taken through a turn, how many are
    picked in the end, and whether the start is compared with one without data."""

    sessions: int
    real: int
    picked: int
    compares_start: bool = True


def is_asking(session_id: str, real: int) -> bool:
    """Whether the session waits for an approval; copies are made in turn."""
    return int(session_id.rpartition("-")[2]) % real % 2 == 1


async def park(sessions: AgentSessionClient, session_id: str, *, asking: bool) -> None:
    """Take a real session through one turn, and into the next one's question if it is to ask."""
    await sessions.start_session(session_id, SAYS_HELLO)
    await wait_for_turns(sessions, session_id, 1)
    if asking:
        await sessions.send_user_message(session_id, ASKS)
        await wait_for_interrupt(sessions, session_id)


async def wake(sessions: AgentSessionClient, session_id: str, *, asking: bool) -> None:
    """Have a parked session answer: its open question first, then a new message."""
    if asking:
        interrupt = await wait_for_interrupt(sessions, session_id)
        await sessions.resolve_interrupt(session_id, interrupt, approved=True)
    await sessions.send_user_message(session_id, SAYS_MORE)
    await wait_for_turns(sessions, session_id, 3 if asking else 2)
    page = await sessions.list_agent_messages(session_id)
    said = [message.text for message in page.messages if message.role == "assistant"]
    assert said == ["Hello.", *(["", "Done."] if asking else []), "Still here."]


async def wait_for_turns(sessions: AgentSessionClient, session_id: str, turns: int) -> None:
    await wait_for_agent_snapshot(
        sessions,
        session_id,
        lambda snapshot: snapshot.state and snapshot.state.turn_count >= turns,
        description=f"turn {turns}",
        timeout=120,
    )


async def wait_for_interrupt(sessions: AgentSessionClient, session_id: str) -> str:
    interrupt = await wait_for_agent_snapshot(
        sessions,
        session_id,
        lambda snapshot: next(iter(snapshot.pending_interrupts), None),
        description="its question",
        timeout=120,
    )
    assert interrupt.deadline is not None
    return interrupt.interrupt_id


async def for_each(
    ids: Iterable[str], sessions: AgentSessionClient, real: int, act: object
) -> None:
    """Park or wake sessions, some at a time."""
    assert act in (park, wake)
    left = iter(ids)

    async def lane() -> None:
        for session_id in left:
            asking = is_asking(session_id, real)
            await (park if act is park else wake)(sessions, session_id, asking=asking)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_A_TIME):
            group.create_task(lane())


async def wait_until_parked(engine: EngineProcess, ids: Iterable[str]) -> None:
    """Wait until every Step of every session waits: a question is asked before its Steps do."""
    async with grpc.aio.insecure_channel(engine.address) as channel:
        stub = dex_pb2_grpc.FlowServiceStub(channel)
        for session_id in ids:
            request = dex_pb2.GetFlowStateRequest(flow_id=session_id)

            async def all_wait(request: dex_pb2.GetFlowStateRequest = request) -> bool:
                steps = (await stub.GetFlowState(request)).active_step_executions
                return all(step.phase == dex_pb2.ACTIVE_STEP_PHASE_WAITING for step in steps)

            await wait_until(f"{session_id} to be parked", all_wait)


@asynccontextmanager
async def running(engine: EngineProcess) -> AsyncGenerator[EngineProcess]:
    try:
        yield engine
    finally:
        await engine.stop()


async def first_answer(engine: EngineProcess, session_id: str) -> tuple[float, float]:
    """Start the engine; return the seconds until it answered about a session, and those of CPU."""
    began = time.monotonic()
    await engine.start()
    async with grpc.aio.insecure_channel(engine.address) as channel:
        stub = dex_pb2_grpc.FlowServiceStub(channel)
        request = dex_pb2.SearchFlowsRequest(query=f"FlowId = '{session_id}'")
        await stub.SearchFlows(request, wait_for_ready=True)
        request = dex_pb2.GetFlowStateRequest(flow_id=session_id)
        with contextlib.suppress(grpc.aio.AioRpcError):  # one without data knows no session
            await stub.GetFlowState(request)
    return time.monotonic() - began, cpu_seconds_of(engine.process.pid)


@needs_proc
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(Size(sessions=2_000, real=4, picked=4, compares_start=False), id="2000"),
        pytest.param(
            Size(sessions=100_000, real=200, picked=1_000), id="100000", marks=pytest.mark.soak
        ),
    ],
)
async def test_parked_sessions_cost_rows_and_answer_when_they_are_spoken_to(
    tmp_path: Path, size: Size, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = parked_flow(tmp_path)
    engine = create_engine(tmp_path / "data", tmp_path)
    width = len(str(size.sessions))
    real = [f"parked-{number:0{width}d}" for number in range(size.real)]
    async with running(engine):
        await engine.start()
        async with open_sessions(flow, server_address=engine.address) as app:
            await for_each(real, app.sessions(), size.real, park)
            await wait_until_parked(engine, real)
        await engine.stop()

        data_file = tmp_path / "data" / "dex.sqlite3"
        began = time.monotonic()
        ids = clone_runs(data_file, size.sessions)
        seeding = time.monotonic() - began
        began = time.monotonic()
        found = check_file(data_file)
        checking = time.monotonic() - began
        assert not found.problems
        assert found.active_runs == size.sessions

        # An hour of virtual time: parked sessions cause nothing that an empty engine does not do.
        idle = await asyncio.to_thread(work_at_rest, data_file.parent, 3_600)
        assert idle == await asyncio.to_thread(work_at_rest, tmp_path / "nothing", 3_600)
        assert idle["decisions"] == idle["runs in memory"] == idle["statements written"] == 0
        assert 0 < idle["statements read"] <= 200

        picked = random.Random(7).sample(ids, size.picked)
        cpu_of_empty = 0.0
        if size.compares_start:
            empty = create_engine(tmp_path / "empty", tmp_path)
            async with running(empty):
                _, cpu_of_empty = await first_answer(empty, picked[0])
        wall, cpu = await first_answer(engine, picked[0])
        at_rest = memory_of(engine.process.pid)
        began = time.monotonic()
        async with open_sessions(flow, server_address=engine.address) as app:
            await for_each(picked, app.sessions(), size.real, wake)
        waking = time.monotonic() - began
        most = memory_of(engine.process.pid, "VmHWM")
        asked = sum(is_asking(session_id, size.real) for session_id in picked)
        assert scripted_log(tmp_path / "state").count("refund") == asked
    with capsys.disabled():
        print(
            f"\n{size.sessions} parked sessions, {size.real} of them real, {found.size / MIB:.0f}"
            f" MiB on disk (seeded in {seeding:.1f} s, checked in {checking:.1f} s):"
            f" first answer after {wall:.2f} s ({cpu:.2f} s of CPU, {cpu_of_empty:.2f} s of them"
            f" without any data), {at_rest / MIB:.0f} MiB at"
            f" rest; {size.picked} answered in {waking:.1f} s, {most / MIB:.0f} MiB at most"
        )
    assert most < MEMORY_BOUND
    assert not size.compares_start or cpu - cpu_of_empty < START_BOUND


def parked_flow(folder: Path) -> AgentSessionFlow:
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    options = AgentSessionOptions(interrupt_deadline=timedelta(days=7))
    return scripted_session_flow(script, folder / "state", options=options)
