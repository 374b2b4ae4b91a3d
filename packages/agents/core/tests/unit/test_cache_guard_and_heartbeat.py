"""The worker's cache, the guard around handlers, and the heartbeat in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from dex import RetryAfterError
from hypothesis import given
from hypothesis import strategies as st

from dex_agents import (
    AgentMessage,
    AgentToolCall,
    AgentToolOutput,
    MessageRole,
    StepLimits,
    ToolCallStatus,
    ToolEffect,
)
from dex_agents._internal_values import AgentMessageSizes
from dex_agents._session.cache import PIN_SECONDS, SessionCache
from dex_agents.session_flow._guard import (
    RetryLaterError,
    StepFailedError,
    guarded,
    guarded_sync,
)
from dex_agents.session_flow._heartbeat import heartbeat_interval, keep_alive
from dex_agents.session_flow._loop_watch import LoopWatch
from dex_agents.testing import wait_until

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def message(sequence: int, length: int = 1000) -> AgentMessage:
    return AgentMessage(sequence, "turn-1", MessageRole.USER, "x" * length, "{}", NOW)


def record(call_id: str) -> AgentToolCall:
    return AgentToolCall(
        call_id, "turn-1", "look", "{}", ToolEffect.READ, False, 0, ToolCallStatus.SUCCEEDED
    )


# --- cache --------------------------------------------------------------------------------------


@pytest.mark.requirement("CORE-COST-08")
def test_runs_of_one_session_do_not_share_values() -> None:
    cache = SessionCache(1_000_000)
    cache.session("s", "run-1").add_message(message(1))
    assert cache.session("s", "run-1").message(1) == message(1)
    assert cache.session("s", "run-2").message(1) is None


@pytest.mark.requirement("CORE-COST-08")
def test_the_least_recently_used_session_goes_first_and_the_latest_one_stays() -> None:
    cache = SessionCache(25_000)
    for name in ("a", "b", "c"):
        cache.session(name, "run").add_message(message(1, 10_000))
    cache.session("a", "run")
    cache.trim(0.0)
    assert cache.peek("b", "run").message(1) is None
    assert cache.peek("a", "run").message(1)
    assert cache.peek("c", "run").message(1)
    cache.session("huge", "run").add_message(message(1, 1_000_000))
    cache.trim(0.0)
    assert cache.peek("huge", "run").message(1)
    assert "1 sessions" in repr(cache)


@pytest.mark.requirement("CORE-COST-09")
def test_a_session_that_is_being_loaded_stays_until_its_pin_ends() -> None:
    cache = SessionCache(5_000)
    pinned = cache.session("loading", "run")
    pinned.add_message(message(1, 10_000))
    pinned.pinned_until = PIN_SECONDS
    cache.session("other", "run").add_message(message(1, 10_000))
    cache.trim(PIN_SECONDS - 1)
    assert cache.peek("loading", "run").message(1)
    cache.trim(PIN_SECONDS)
    assert cache.peek("loading", "run").message(1) is None


@pytest.mark.requirement("CORE-COST-15")
def test_a_new_turn_forgets_the_calls_of_the_last_one_because_ids_may_repeat() -> None:
    session = SessionCache(1_000_000).session("s", "run")
    session.begin_turn("turn-1")
    session.add_message(message(1))
    before = session.size
    session.add_record(record("c1"))
    session.add_output("c1", AgentToolOutput("x" * 500, "{}"))
    session.begin_turn("turn-1")
    assert "c1" in session.keys().records
    session.begin_turn("turn-2")
    assert "c1" not in session.keys().records
    assert "c1" not in session.keys().outputs
    assert session.size == before


def test_values_are_counted_once_and_all_forgotten_together() -> None:
    session = SessionCache(1_000_000).session("s", "run")
    session.add_message(message(1))
    size = session.size
    session.add_message(message(1))
    assert session.size == size
    session.add_block(0, AgentMessageSizes((1,) * 500))
    assert session.size > size
    session.clear()
    assert (session.size, session.keys().blocks) == (0, {})


@given(st.permutations(range(1, 9)))
def test_messages_are_found_in_whatever_order_they_arrive(order: list[int]) -> None:
    session = SessionCache(1_000_000).session("s", "run")
    for count, sequence in enumerate(order, 1):
        session.add_message(message(sequence, 10))
        here = {n for n in range(1, 9) if session.message(n) is not None}
        assert here == set(order[:count])
        keys = session.keys()
        assert {n for n in range(1, 9) if n <= keys.prefix or n in keys.messages} == here
        assert keys.prefix == next((n for n in range(8) if n + 1 not in here), 8)
    assert [m.sequence for m in session.prefix] == list(range(1, 9))


# --- guard --------------------------------------------------------------------------------------


async def run_guarded(handler: Callable[[], Awaitable[object]]) -> object:
    return await guarded(handler)()


@pytest.mark.requirement("CORE-FAIL-11")
async def test_an_error_leaves_with_its_type_and_text_and_without_its_causes() -> None:
    async def handler() -> None:
        try:
            raise KeyError("secret \udc80 cause")
        except KeyError:
            raise ValueError("bad \ud83d text") from None

    with pytest.raises(StepFailedError) as raised:
        await run_guarded(handler)
    assert str(raised.value) == "ValueError: bad \\ud83d text"
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@pytest.mark.requirement("CORE-FAIL-13")
async def test_a_failure_is_logged_with_its_origin_in_text_that_can_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def failing_tool() -> None:
        raise ValueError("bad \ud83d text")

    with pytest.raises(StepFailedError):
        await run_guarded(failing_tool)
    caplog.text.encode()
    assert "failing_tool" in caplog.text


@pytest.mark.requirement("CORE-FAIL-11")
async def test_a_long_error_is_cut_to_what_the_engine_passes_on() -> None:
    async def handler() -> None:
        raise OSError("x" * 100_000)

    with pytest.raises(StepFailedError) as raised:
        await run_guarded(handler)
    assert len(str(raised.value).encode()) <= 1000


@pytest.mark.requirement("CORE-FAIL-03")
async def test_a_delay_reaches_the_sdk_as_its_own_frozen_error() -> None:
    async def handler() -> None:
        raise RetryLaterError("RateLimit: slow \ud83d", 7)

    with pytest.raises(RetryAfterError) as raised:
        await run_guarded(handler)
    assert raised.value.after_seconds == 7
    assert isinstance(raised.value.cause, StepFailedError)


@pytest.mark.requirement("CORE-FAIL-12")
async def test_a_foreign_cancellation_becomes_an_error() -> None:
    async def handler() -> None:
        raise asyncio.CancelledError("a library gave up")

    with pytest.raises(StepFailedError, match="CancelledError"):
        await run_guarded(handler)


@pytest.mark.requirement("CORE-FAIL-12")
async def test_a_real_cancellation_passes_through() -> None:
    started = asyncio.Event()

    async def handler() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(cast(Any, run_guarded(handler)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_plain_handler_is_guarded_the_same_way() -> None:
    @guarded_sync
    def handler() -> None:
        raise TypeError("bad \ud83d")

    with pytest.raises(StepFailedError, match="TypeError"):
        handler()


async def test_results_pass_through_the_guards() -> None:
    async def handler() -> int:
        return 7

    assert await run_guarded(handler) == 7
    assert guarded_sync(lambda: 8)() == 8


# --- heartbeat ----------------------------------------------------------------------------------


class Beats:
    """A context that counts heartbeats."""

    def __init__(self, error: Exception | None = None) -> None:
        self.count = 0
        self.error = error

    async def heartbeat(self) -> None:
        self.count += 1
        if self.error is not None:
            raise self.error


@pytest.mark.requirement("CORE-TOOL-14")
async def test_heartbeats_go_on_while_the_block_runs_and_end_with_it() -> None:
    beats = Beats()
    async with keep_alive(cast(Any, beats), "a tool", LoopWatch(), interval=0.001):
        await wait_until("three beats", lambda: beats.count >= 3, interval=0.001)
    ended = beats.count
    await asyncio.sleep(0.02)
    assert beats.count == ended
    assert not [t for t in asyncio.all_tasks() if "heartbeat" in t.get_name()]


@pytest.mark.requirement("CORE-TOOL-15")
async def test_a_heartbeat_that_fails_does_not_fail_the_block(
    caplog: pytest.LogCaptureFixture,
) -> None:
    beats = Beats(ValueError("the stream is gone"))
    async with keep_alive(cast(Any, beats), "a tool", LoopWatch(), interval=0.001):
        await wait_until("the failing beat", lambda: beats.count, interval=0.001)
    assert "a tool" in caplog.text


@pytest.mark.requirement("CORE-TOOL-14")
@pytest.mark.parametrize(("timeout", "interval"), [(120, 20.0), (3600, 20.0), (10, 2.5), (2, 0.5)])
def test_a_short_heartbeat_timeout_makes_a_session_beat_more_often(
    timeout: int, interval: float
) -> None:
    limits = StepLimits(heartbeat_timeout=timedelta(seconds=timeout))
    assert heartbeat_interval(limits) == interval
