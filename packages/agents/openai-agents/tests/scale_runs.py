"""Turns that are large in one respect: many parallel calls, a long history, many rounds of tools.

`python scale_runs.py`, in this folder, prints what they cost.
"""

from __future__ import annotations

import asyncio
import cProfile
import random
import string
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agents import Agent, RunContextWrapper, function_tool, set_tracing_disabled
from stepped_session import SteppedTurn, call, response, says, script, session_of

from dex_agents import AgentTurnContext, AgentTurnOutcome
from dex_agents_openai_agents import OpenAIAgentsRunner

PAGE_BYTES = 5_000
TOKEN_BYTES = 4


@dataclass
class StepCost:
    """What the resumed model Step of a turn cost.

    Attributes:
        function_calls: Python functions called in it.
        longest_callback: The same, in the longest piece of work without a pause for the event loop.
        seconds: Time it took.
        longest_gap: Longest time in which nothing else ran on the event loop.
        state_bytes: Size of the stored run state.
    """

    function_calls: int = 0
    longest_callback: int = 0
    seconds: float = 0.0
    longest_gap: float = 0.0
    state_bytes: int = 0


async def resume_with_parallel_calls(count: int, *, counted: bool) -> StepCost:
    """Play a turn whose first response makes this many calls; return what its resumed Step cost.

    Args:
        count: Parallel calls of a tool that only reads.
        counted: Count function calls, which takes a multiple of the time.
    """

    @function_tool
    async def ping(x: int) -> str:
        """Answer."""
        return f"pong {x}"

    cost = StepCost()

    class Measured(OpenAIAgentsRunner):
        async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
            if not turn.is_resuming:
                return await super().run_model_step(turn)
            cost.state_bytes = len(turn.framework_run_state or "")
            async with _counting(cost) if counted else _timing(cost):
                return await super().run_model_step(turn)

    calls = [call("ping", f"c{number}", x=number) for number in range(count)]
    agent = Agent[Any](
        name="A", model=script(response(*calls), response(says("done"))), tools=[ping]
    )
    session = session_of(agent)
    session.make_runner = lambda: Measured(agent)
    assert (await session.turn("go")).text == "done"
    return cost


@asynccontextmanager
async def _counting(cost: StepCost) -> AsyncGenerator[None]:
    """Count function calls, in all and between two pauses of the event loop."""
    run = asyncio.events.Handle._run
    total = 0

    def run_counted(handle: asyncio.events.Handle) -> None:
        nonlocal total
        profile = cProfile.Profile(builtins=False)
        profile.enable()
        try:
            run(handle)
        finally:
            profile.disable()
        calls = sum(entry.callcount for entry in profile.getstats())
        total += calls
        cost.longest_callback = max(cost.longest_callback, calls)

    setattr(asyncio.events.Handle, "_run", run_counted)  # noqa: B010 - a patch, whatever its type
    try:
        yield
    finally:
        setattr(asyncio.events.Handle, "_run", run)  # noqa: B010
        cost.function_calls = total


@asynccontextmanager
async def _timing(cost: StepCost) -> AsyncGenerator[None]:
    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            cost.longest_gap, last = max(cost.longest_gap, now - last), now

    started = time.perf_counter()
    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        cost.seconds = time.perf_counter() - started


@dataclass
class Conversation:
    """A long history and a turn of many tool rounds on top of it.

    Attributes:
        turn: The turn.
        step_seconds: Time of each model Step.
    """

    turn: SteppedTurn
    step_seconds: list[float] = field(default_factory=list[float])


async def rounds_on_a_history(rounds: int, history_tokens: int) -> Conversation:
    """Play a turn of tool rounds, each with 5 kB of output, on a history of this size."""
    letters = random.Random(1)
    text = "".join(letters.choices(string.printable, k=20_000))
    seconds: list[float] = []

    @function_tool
    def page(_context: RunContextWrapper[Any], number: int) -> str:
        """Read a page."""
        return "".join(random.Random(number).choices(string.printable, k=PAGE_BYTES))

    class Timed(OpenAIAgentsRunner):
        async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
            started = time.perf_counter()
            try:
                return await super().run_model_step(turn)
            finally:
                seconds.append(time.perf_counter() - started)

    older = [
        response(says(f"{number} {text}", f"m{number}"))
        for number in range(history_tokens * TOKEN_BYTES // len(text))
    ]
    model = script(
        *older,
        *(response(call("page", f"c{number}", number=number)) for number in range(rounds)),
        response(says("done", "m")),
    )
    agent = Agent[Any](name="A", model=model, tools=[page])
    session = session_of(agent)
    session.make_runner = lambda: Timed(agent, max_turns=None)
    for _ in older:
        await session.turn("go on")
    seconds.clear()
    turn = await session.turn("read it all")
    assert turn.text == "done", turn.outcome
    return Conversation(turn, list(seconds))


async def _print_costs() -> None:
    print("parallel calls   resumed Step   longest gap   stored state")
    await resume_with_parallel_calls(10, counted=False)
    for count in (10, 20, 40, 80):
        cost = await resume_with_parallel_calls(count, counted=False)
        print(
            f"{count:14}   {cost.seconds:10.3f} s   {cost.longest_gap:9.3f} s   "
            f"{cost.state_bytes:10} B"
        )
    print("\ntool rounds of 5 kB on 200,000 tokens of history")
    played = await rounds_on_a_history(100, 200_000)
    for number in (1, 10, 50, 100):
        print(
            f"round {number:3}: model Step {played.step_seconds[number]:.3f} s, stored state "
            f"{played.turn.state_sizes[number - 1]} B"
        )
    print(f"all model Steps: {sum(played.step_seconds):.1f} s")


if __name__ == "__main__":
    set_tracing_disabled(True)
    sys.exit(asyncio.run(_print_costs()))
