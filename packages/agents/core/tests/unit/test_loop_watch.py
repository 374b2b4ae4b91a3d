"""A blocked event loop: who is named for it in the log, and what the log does not hold."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from dex_agents.session_flow._loop_watch import LoopWatch
from dex_agents.testing import wait_until

LATE = 0.1
TICK = 0.01
BLOCKED = 0.5


def pay_by_blocking(secret: str) -> None:
    time.sleep(BLOCKED)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "dex_agents")
    return caplog


@pytest.fixture(autouse=True)
def no_threads_of_other_tests() -> None:
    wait_for_no_thread()


def wait_for_no_thread() -> None:
    deadline = time.monotonic() + 10
    while watch_threads() and time.monotonic() < deadline:
        time.sleep(TICK)
    assert watch_threads() == []


def watch_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "dex-agents loop watch"]


async def run_next_to_others(watch: LoopWatch, call: Callable[[], Awaitable[None]]) -> None:
    """Run a call as tool 'pay', while tool 'look' runs as well and does nothing wrong."""
    ended = asyncio.Event()

    async def look() -> None:
        with watch.running("tool 'look'"):
            await ended.wait()

    async def pay() -> None:
        with watch.running("tool 'pay'"):
            await call()

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    try:
        await asyncio.create_task(pay())
    finally:
        ended.set()
        await looking


@pytest.mark.requirement("CORE-TOOL-16")
async def test_the_call_that_blocks_the_loop_is_named_and_its_values_are_not(
    log: pytest.LogCaptureFixture,
) -> None:
    async def blocking() -> None:
        pay_by_blocking("4711")

    await run_next_to_others(LoopWatch(LATE, TICK), blocking)
    await wait_until("the end", lambda: "which tool 'pay' blocked it" in log.text, interval=TICK)
    # On a machine that is short of time the loop may be late before the tool has begun as well.
    lines = [record.getMessage() for record in log.records]
    (blocked,) = (line for line in lines if "pay_by_blocking (" in line)
    assert "by tool 'pay', at" in blocked
    assert f"{__file__}:" in blocked
    assert "4711" not in log.text


@pytest.mark.requirement("CORE-TOOL-16")
async def test_a_task_that_a_tool_has_started_counts_as_the_tool(
    log: pytest.LogCaptureFixture,
) -> None:
    async def blocking() -> None:
        async def inner() -> None:
            pay_by_blocking("4711")

        await asyncio.create_task(inner())

    await run_next_to_others(LoopWatch(LATE, TICK), blocking)
    await wait_until("the end", lambda: "pay_by_blocking (" in log.text, interval=TICK)
    named = "tool 'pay'" if sys.version_info >= (3, 12) else "one of tool 'look', tool 'pay'"
    assert named in log.text


@pytest.mark.requirement("CORE-TOOL-16")
async def test_a_loop_that_answers_is_left_alone_and_the_thread_ends_with_the_calls(
    log: pytest.LogCaptureFixture,
) -> None:
    watch = LoopWatch(late=30, tick=TICK)
    for _ in range(3):
        with watch.running("tool 'pay'"):
            assert len(watch_threads()) == 1
            await asyncio.sleep(3 * TICK)
    await wait_until("the end of the thread", lambda: not watch_threads(), interval=TICK)
    assert log.records == []
    with watch.running("tool 'pay'"):
        assert len(watch_threads()) == 1


def test_a_thread_ends_with_its_loop() -> None:
    watch = LoopWatch(late=30, tick=TICK)

    async def call() -> None:
        with watch.running("tool 'pay'"):
            await asyncio.sleep(0)

    asyncio.run(call())
    wait_for_no_thread()
    asyncio.run(call())
