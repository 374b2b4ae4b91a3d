"""Waiting for a condition with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, overload

DEFAULT_TIMEOUT: Final = 60.0
DEFAULT_INTERVAL: Final = 0.05

T = TypeVar("T")


class WaitTimeoutError(TimeoutError):
    """What a test waited for did not come in time.

    Attributes:
        description: What was awaited.
        last_value: What the probe returned last; `None` when it never returned.
    """

    def __init__(
        self, description: str, timeout: float, last_value: object, last_error: Exception | None
    ) -> None:
        seen = f"the probe raised {last_error!r}" if last_error else f"last seen: {last_value!r}"
        super().__init__(f"{description} did not come within {timeout:g} s; {seen}")
        self.description = description
        self.last_value = last_value


@overload
async def wait_until(
    description: str,
    probe: Callable[[], Awaitable[T | None]],
    *,
    timeout: float = ...,
    interval: float = ...,
    ignore: tuple[type[Exception], ...] = ...,
) -> T: ...
@overload
async def wait_until(
    description: str,
    probe: Callable[[], T | None],
    *,
    timeout: float = ...,
    interval: float = ...,
    ignore: tuple[type[Exception], ...] = ...,
) -> T: ...
async def wait_until(
    description: str,
    probe: Callable[[], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    interval: float = DEFAULT_INTERVAL,
    ignore: tuple[type[Exception], ...] = (),
) -> object:
    """Call `probe` again and again until it returns something true, and return that.

    Args:
        description: What is awaited, for the message of a timeout.
        probe: A function, plain or async. An async one is given up at the deadline.
        timeout: Seconds until the wait fails.
        interval: Seconds between two calls.
        ignore: Errors of the probe that mean "not yet".

    Raises:
        WaitTimeoutError: Nothing true came in time.
    """
    deadline = time.monotonic() + timeout
    value: object = None
    error: Exception | None = None
    while True:
        try:
            value, error = await _call(probe, deadline), None
        except ignore as caught:
            error = caught
        except _DeadlineReachedError:
            raise WaitTimeoutError(description, timeout, value, error) from error
        if value and error is None:
            return value
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(description, timeout, value, error) from error
        await asyncio.sleep(interval)


class _DeadlineReachedError(Exception):
    pass


async def _call(probe: Callable[[], object], deadline: float) -> object:
    result = probe()
    if not inspect.isawaitable(result):
        return result
    limit = asyncio.timeout(max(0.0, deadline - time.monotonic()))
    try:
        async with limit:
            return await result
    except TimeoutError:
        if limit.expired():
            raise _DeadlineReachedError from None
        raise
