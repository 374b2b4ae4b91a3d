"""Cases about workers and sessions that live long: blocking tools, garbage, many turns."""

from __future__ import annotations

import asyncio
import gc
import threading

from agents import Agent, function_tool
from stepped_session import call, outputs, response, says, script, session_of

from dex_agents import ToolCallStatus, ToolEffect, ToolPolicy


async def test_case_16_a_plain_function_runs_beside_the_event_loop_which_stays_free() -> None:
    runs: list[int] = []
    loop, released = asyncio.get_running_loop(), threading.Event()

    @function_tool
    def pay() -> str:
        """Pay; blocks until the event loop of the worker has done something else."""
        runs.append(threading.get_ident())
        loop.call_soon_threadsafe(released.set)
        assert released.wait(60), "the event loop was blocked"
        return "paid"

    model = script(response(call("pay", "c1")), response(says("done")))
    session = session_of(
        Agent(name="A", model=model, tools=[pay]),
        policies={"pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)},
    )
    turn = await session.turn("go")
    assert turn.records["c1"].status is ToolCallStatus.SUCCEEDED
    assert outputs(model.calls[1].input) == ["paid"]
    [thread] = runs
    assert thread != threading.get_ident()


async def test_case_33_garbage_collected_all_the_time_takes_nothing_that_is_still_needed() -> None:
    turns = 20

    @function_tool
    async def ping(x: int) -> str:
        """Answer."""
        await asyncio.sleep(0)
        return f"pong {x}"

    async def collect() -> None:
        while True:
            gc.collect(1)
            await asyncio.sleep(0)

    steps = [
        step
        for number in range(turns)
        for step in (
            response(call("ping", f"c{number}", x=number)),
            response(says(f"answer {number}.", f"m{number}")),
        )
    ]
    session = session_of(Agent(name="A", model=script(*steps), tools=[ping]))
    collecting = asyncio.create_task(collect())
    try:
        for number in range(turns):
            assert (await session.turn("go")).text == f"answer {number}."
    finally:
        collecting.cancel()
    assert session.live_text() == "".join(f"answer {number}." for number in range(turns))
    running = asyncio.all_tasks() - {asyncio.current_task(), collecting}
    assert running == set(), "no task is left behind"


async def test_case_35_every_turn_of_a_long_session_stores_the_same_and_forgets_nothing() -> None:
    turns = 60
    model = script(*(response(says("ok", f"m{number:04}")) for number in range(turns)))
    session = session_of(Agent(name="A", model=model))
    for number in range(turns):
        assert (await session.turn(f"question {number:04}")).text == "ok"
    sizes = [len(message.framework_item) for message in session.messages]
    assert set(sizes[0::2]) == {sizes[0]}
    assert set(sizes[1::2]) == {sizes[1]}
    asked = [item["content"] for item in model.calls[-1].input if item.get("role") == "user"]
    assert asked == [f"question {number:04}" for number in range(turns)]
