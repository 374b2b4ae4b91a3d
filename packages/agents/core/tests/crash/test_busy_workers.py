"""Many sessions over three workers that are killed at named places again and again.

The workers choose their next place and arrival by `DEX_CRASH_SEED`, so the places of a failed run
can be visited again. `DEX_CRASH_KILLS` bounds the kills; with 100 or more there are 32 sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from crashing_agent import (
    AT_VARIABLE,
    ATTEMPTS_VARIABLE,
    EFFECTS,
    PLACES,
    SINGLE_ATTEMPT,
    UNKNOWN,
    script_of,
)
from crashing_stack import CrashingStack, tool_texts
from dex import DexServiceError

from dex_agents import AgentMessage, AgentSnapshot
from dex_agents.errors import SessionNotFoundError
from dex_agents.testing import ChildProcessError, StartProcess, wait_until

T = TypeVar("T")

WORKERS = 3
#: Five parallel calls a turn: every effect, and a second read.
CALLS = (*EFFECTS, "look")
KILLS = int(os.environ.get("DEX_CRASH_KILLS", "20"))
SEED = os.environ.get("DEX_CRASH_SEED", "1")
PATIENCE = 600.0


@dataclass
class Killing:
    """Keeps workers running and lets each die at its place.

    Attributes:
        stack: The stack.
        kills_left: How many workers still get a place to die at.
        arrivals: Highest arrival at a place that kills.
        died_at: How many workers died at which place.
    """

    stack: CrashingStack
    kills_left: int
    arrivals: int
    died_at: Counter[str] = field(default_factory=Counter[str])

    async def keep_one_worker(self, seed: str) -> None:
        """Start a worker, wait for its death, start the next, until the kills are used up."""
        chance = random.Random(seed)
        while self.kills_left > 0:
            self.kills_left -= 1
            place, count = chance.choice(PLACES), chance.randint(1, self.arrivals)
            # It may die before it could tell that it is ready.
            with contextlib.suppress(ChildProcessError):
                worker = await self.stack.start_worker({AT_VARIABLE: f"{place}:{count}"})
                await worker.wait(timeout=PATIENCE)
            self.died_at[place] += 1
        await self.stack.start_worker()


async def until_served(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call again and again until it is answered."""

    async def once() -> tuple[T]:
        return (await asyncio.wait_for(call(), 15),)

    answered = await wait_until(
        "an answer",
        once,
        timeout=PATIENCE,
        interval=0.2,
        ignore=(DexServiceError, TimeoutError, SessionNotFoundError),
    )
    return answered[0]


async def drive(stack: CrashingStack, session_id: str, turns: int) -> tuple[AgentMessage, ...]:
    """Take a session through its turns, whatever dies meanwhile, and return all its messages."""
    sessions = stack.sessions()
    snapshot: AgentSnapshot | None = None
    for turn in range(1, turns + 1):
        message_id = f"{session_id}-{turn}"
        if turn == 1:
            await until_served(
                lambda: sessions.start_session(session_id, "turn 1", message_id=f"{session_id}-1")
            )
        else:
            await until_served(
                lambda text=f"turn {turn}", known=message_id: sessions.send_user_message(
                    session_id, text, message_id=known
                )
            )
        snapshot = await stack.turn_ended(session_id, turn, PATIENCE, interval=0.5)
    assert snapshot is not None
    assert snapshot.state is not None
    assert snapshot.state.last_turn_error is None
    assert snapshot.usage.model_calls == 2 * turns
    page = await until_served(lambda: sessions.list_agent_messages(session_id))
    assert not page.has_more
    return page.messages


def check(
    stack: CrashingStack, session_id: str, turns: int, messages: tuple[AgentMessage, ...]
) -> int:
    """Assert that what the session tells is what has happened; return how much is unknown."""
    assert [message.sequence for message in messages] == list(range(1, len(messages) + 1))
    # A question, a request and a result for each call, and an answer.
    assert len(messages) == turns * (2 * len(CALLS) + 2)
    unknown = 0
    for number in range(1, turns + 1):
        turn = f"turn-{number}"
        mine = [message for message in messages if message.turn_id == turn]
        assert (mine[0].text, mine[-1].text) == (f"turn {number}", f"end {number}")
        texts = tool_texts(messages, turn)
        assert len(texts) == len(CALLS)
        for position, (tool, text) in enumerate(zip(CALLS, texts, strict=True), 1):
            unknown += check_call(stack, (session_id, turn, f"c{position}"), tool, text)
        check_model_calls(stack, session_id, turn)
    return unknown


def check_call(stack: CrashingStack, call: tuple[str, str, str], tool: str, text: str) -> bool:
    """Compare one result with the effects of the call; return whether it is unknown."""
    session_id, turn, call_id = call
    effects = [
        entry for entry in stack.details(tool, session_id, turn) if entry["tool_call_id"] == call_id
    ]
    assert {entry["idempotency_key"] for entry in effects} <= {"/".join(call)}
    if tool in SINGLE_ATTEMPT:
        assert len(effects) <= 1, f"{tool} ran {len(effects)} times in {call}"
        if text.startswith(UNKNOWN):
            return True
    assert text == f"{tool} {call_id[1:]}", call
    assert effects, f"{tool} is told as done in {call} and never ran"
    return False


def check_model_calls(stack: CrashingStack, session_id: str, turn: str) -> None:
    """Each model call of a turn was made, and again with the same input after a kill."""
    inputs: dict[int, list[object]] = {}
    for call in stack.details("run_model_step", session_id, turn):
        inputs.setdefault(call["reply"], []).append([call["messages"], call["tool_calls"]])
    assert sorted(inputs) == [1, 2]
    assert all(given == asked[0] for asked in inputs.values() for given in asked)


@pytest.mark.timeout(PATIENCE)
@pytest.mark.requirement("CORE-EFFECT-11")
@pytest.mark.parametrize(
    ("count", "turns", "kills"),
    [
        pytest.param(6, 1, 4, id="short"),
        pytest.param(
            *((32, 3) if KILLS >= 100 else (8, 3)),
            min(KILLS, 200),
            id="full",
            marks=pytest.mark.crash,
        ),
    ],
)
async def test_busy_sessions_end_right_on_workers_that_are_killed_all_the_time(
    tmp_path: Path, start: StartProcess, count: int, turns: int, kills: int
) -> None:
    # Kills as many as these are no accident any more, so a call may be tried more than three times.
    patient = {ATTEMPTS_VARIABLE: "1000"}
    script = script_of(*CALLS, turns=turns, delay=0.05)
    async with CrashingStack(tmp_path, script, start, patient) as stack:
        killing = Killing(stack, kills, arrivals=max(2, count // 6))
        session_ids = [f"s-{number}" for number in range(count)]
        async with asyncio.TaskGroup() as group:
            keepers = [
                group.create_task(killing.keep_one_worker(f"{SEED}-{worker}"))
                for worker in range(WORKERS)
            ]
            driven = [
                group.create_task(drive(stack, session_id, turns)) for session_id in session_ids
            ]
            await asyncio.wait(driven)
            for keeper in keepers:
                keeper.cancel()
        unknown = sum(
            check(stack, session_id, turns, each.result())
            for session_id, each in zip(session_ids, driven, strict=True)
        )
        deaths = sum(worker.returncode == -signal.SIGKILL for worker in stack.workers)
    places = dict(sorted(killing.died_at.items()))
    print(
        f"\n{count} sessions of {turns} turns ended right; {deaths} workers died at {places}; "
        f"{unknown} outcomes are unknown"
    )
    assert deaths >= min(kills // 2, 2 * WORKERS)
