from __future__ import annotations

import asyncio

import pytest

from dex_agents.testing import WaitTimeoutError, wait_until


async def test_a_wait_returns_the_first_true_value() -> None:
    values = iter([None, 0, "", "here", "later"])

    assert await wait_until("a value", lambda: next(values), interval=0) == "here"


async def test_an_async_probe_is_awaited() -> None:
    async def probe() -> int:
        return 7

    assert await wait_until("seven", probe) == 7


async def test_a_wait_that_fails_says_what_was_awaited_and_what_was_seen() -> None:
    with pytest.raises(
        WaitTimeoutError, match=r"a train did not come within 0\.05 s; last seen: 0"
    ):
        await wait_until("a train", lambda: 0, timeout=0.05, interval=0.01)


async def test_a_probe_that_hangs_is_given_up_at_the_deadline() -> None:
    async def probe() -> bool:
        await asyncio.sleep(600)
        return True

    with pytest.raises(WaitTimeoutError):
        await wait_until("an answer", probe, timeout=0.05)


async def test_errors_count_as_not_yet_only_when_asked_to() -> None:
    results = iter([KeyError("first"), "there"])

    def probe() -> str:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    assert await wait_until("it", probe, interval=0, ignore=(KeyError,)) == "there"
    results = iter([KeyError("second")])
    with pytest.raises(KeyError, match="second"):
        await wait_until("it", probe, interval=0)


async def test_the_error_of_the_last_probe_is_named_and_is_the_cause() -> None:
    def probe() -> bool:
        raise ConnectionError("nobody there")

    with pytest.raises(WaitTimeoutError, match="nobody there") as caught:
        await wait_until("it", probe, timeout=0.05, interval=0.01, ignore=(ConnectionError,))

    assert isinstance(caught.value.__cause__, ConnectionError)


async def test_a_time_out_inside_the_probe_is_not_taken_for_the_deadline() -> None:
    async def probe() -> bool:
        raise TimeoutError("of the probe")

    with pytest.raises(TimeoutError, match="of the probe"):
        await wait_until("it", probe, timeout=30)
