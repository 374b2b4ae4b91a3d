"""Long sessions on a real engine: warm workers load what is new, cold ones load in parts."""

from __future__ import annotations

import functools
import random
import string
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from session_harness import (
    FunctionRunner,
    RunningSession,
    answer,
    ask,
    outcomes,
    running_session,
    running_sessions,
    tool_call,
)

from dex_agents import (
    AgentEventType,
    AgentSessionFlow,
    AgentTurnContext,
    AgentTurnOutcome,
    FrameworkMessage,
    MessageRole,
)
from dex_agents.local import open_sessions

ITEM_BYTES = 50_000
ITEMS_PER_TURN = 50
TURN_BYTES = ITEM_BYTES * ITEMS_PER_TURN


@functools.cache
def noise(length: int, seed: object) -> str:
    """Return text that does not compress."""
    return "".join(random.Random(str(seed)).choices(string.ascii_letters + string.digits, k=length))


def checksum(turn: AgentTurnContext) -> str:
    """Say whether the model sees every message, unbroken and in order."""
    numbers = [message.sequence for message in turn.messages]
    whole = all(
        message.text == noise(ITEM_BYTES, message.framework_item)
        for message in turn.messages
        if message.role is MessageRole.TOOL
    )
    return f"{numbers == list(range(1, len(numbers) + 1))} {whole} {len(numbers)}"


def growing(turn: AgentTurnContext) -> AgentTurnOutcome:
    """Answer with the checksum; a message `grow` adds 2.5 MB of items first."""
    if turn.messages[-1].text != "grow":
        return answer(checksum(turn))
    start = len(turn.messages)
    return answer(
        checksum(turn),
        *(
            FrameworkMessage(MessageRole.TOOL, f'"{n}"', noise(ITEM_BYTES, f'"{n}"'))
            for n in range(start, start + ITEMS_PER_TURN)
        ),
    )


async def model_steps(session: RunningSession, turn: str) -> int:
    """Return how many model Steps the session has run up to the end of a turn, hops included."""
    events = await session.events_until(AgentEventType.TURN_COMPLETED, turn)
    numbers = [
        int(event.step_execution_id.removeprefix("RunModel-"))
        for event in events
        if event.type is AgentEventType.USAGE_RECORDED
    ]
    return numbers[-1]


async def say(session: RunningSession, text: str) -> tuple[str, int]:
    """Run one turn; return its answer and the number of model Steps it took."""
    snapshot = await session.until("the state", lambda s: s if s.state else None)
    assert snapshot.state is not None
    ended = snapshot.state.turn_count
    before = await model_steps(session, f"turn-{ended}") if ended else 0
    await session.send(text)
    snapshot = await session.turn_ended(ended + 1)
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error is None
    answered = next(m.text for m in reversed(snapshot.messages) if m.role is not MessageRole.TOOL)
    return answered, await model_steps(session, f"turn-{ended + 1}") - before


async def grow(session: RunningSession, turns: int) -> None:
    """Start a session and store 2.5 MB in each of its first turns."""
    await session.start()
    for turn in range(turns):
        text, steps = await say(session, "grow")
        count = turn * (ITEMS_PER_TURN + 2) + 1
        assert text == f"True True {count}"
        assert steps == 1


async def test_a_cold_worker_loads_a_long_history_in_parts_and_a_warm_one_only_what_is_new(
    tmp_path: Path,
) -> None:
    async with running_session(tmp_path, FunctionRunner(growing)) as session:
        await grow(session, 4)
    runner = FunctionRunner(growing)
    async with running_session(tmp_path, runner) as session:
        count = 4 * (ITEMS_PER_TURN + 2)
        text, steps = await say(session, "cold")
        assert text == f"True True {count + 1}"
        assert 4 <= steps <= 6
        assert len(runner.turns) == 1
        text, steps = await say(session, "warm")
        assert (text, steps) == (f"True True {count + 3}", 1)


@pytest.mark.requirement("CORE-COST-04")
async def test_a_short_history_needs_no_second_task_on_a_cold_worker(tmp_path: Path) -> None:
    async with running_session(tmp_path, FunctionRunner(growing)) as session:
        await session.start("hi")
        await session.turn_ended(1)
    async with running_session(tmp_path, FunctionRunner(growing)) as session:
        assert await say(session, "cold") == ("True True 3", 1)


@asynccontextmanager
async def three_workers(
    data_dir: Path, runners: list[FunctionRunner]
) -> AsyncGenerator[RunningSession]:
    """Serve one Flow type by three workers, each with a cache of its own."""
    flows = [AgentSessionFlow(runner, flow_type="Tested") for runner in runners]
    async with (
        running_sessions(data_dir, flows[0]) as app,
        open_sessions(flows[1], server_address=app.server_address, connect=False),
        open_sessions(flows[2], server_address=app.server_address, connect=False),
    ):
        yield RunningSession(app, flows[0], "session-1")


@pytest.mark.requirement("CORE-COST-12")
async def test_three_workers_that_each_lack_a_part_still_finish_the_turn(tmp_path: Path) -> None:
    async with running_session(tmp_path, FunctionRunner(growing)) as session:
        await grow(session, 3)
    runners = [FunctionRunner(growing) for _ in range(3)]
    async with three_workers(tmp_path, runners) as session:
        count = 3 * (ITEMS_PER_TURN + 2)
        for turn in range(4):
            text, _ = await say(session, "hello")
            assert text == f"True True {count + 2 * turn + 1}"
    assert sum(len(runner.turns) for runner in runners) == 4


async def test_tool_rounds_of_a_cold_session_load_the_history_once(tmp_path: Path) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.messages[-1].text != "tools":
            return growing(turn)
        if len(turn.tool_calls) < 3:
            return ask(tool_call(f"c{len(turn.tool_calls)}"))
        return answer(f"{checksum(turn)} {outcomes(turn)}")

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await grow(session, 3)
    runner = FunctionRunner(model)
    async with running_session(tmp_path, runner) as session:
        text, steps = await say(session, "tools")
        count = 3 * (ITEMS_PER_TURN + 2)
        assert text == f"True True {count + 1} {['look ran'] * 3}"
        assert len(runner.turns) == 4
        assert steps <= 4 + 5


async def test_many_small_messages_seal_their_sizes_and_load_on_a_cold_worker(
    tmp_path: Path,
) -> None:
    def model(turn: AgentTurnContext) -> AgentTurnOutcome:
        if turn.messages[-1].text != "grow":
            return answer(checksum(turn))
        items = (FrameworkMessage(MessageRole.ASSISTANT, "{}", f"item {n}") for n in range(1498))
        return answer("grown", *items)

    async with running_session(tmp_path, FunctionRunner(model)) as session:
        await session.start()
        for _ in range(2):
            await say(session, "grow")
    async with running_session(tmp_path, FunctionRunner(model)) as session:
        text, steps = await say(session, "cold")
        assert text == "True True 3001"
        assert 2 <= steps <= 4
        assert await say(session, "warm") == ("True True 3003", 1)
        page = await session.client.list_agent_messages(session.session_id, 450, 100)
        assert [m.sequence for m in page.messages] == list(range(451, 551))
