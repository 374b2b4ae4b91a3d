"""Calls that are repeated for a while: when a lock is held, or the server cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc
from dex import DexServiceError, RpcLockConflictError

ResultT = TypeVar("ResultT")

#: Seconds for which a lock held by a Step or another caller is waited for.
LOCK_RETRY_SECONDS: Final = 5.0
#: Seconds for which an unreachable server is asked again, where asking again is harmless.
UNAVAILABLE_RETRY_SECONDS: Final = 10.0

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5


async def while_locked(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Repeat a call for up to 5 seconds while a Step or another caller holds its lock."""
    return await _repeat(
        call, lambda error: isinstance(error, RpcLockConflictError), LOCK_RETRY_SECONDS
    )


async def while_unavailable(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Repeat a harmless call while the server cannot be reached, for example while it restarts."""
    return await _repeat(
        call,
        lambda error: error.code is grpc.StatusCode.UNAVAILABLE,
        UNAVAILABLE_RETRY_SECONDS,
    )


async def _repeat(
    call: Callable[[], Awaitable[ResultT]],
    is_worth_it: Callable[[DexServiceError], bool],
    seconds: float,
) -> ResultT:
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            return await call()
        except DexServiceError as error:
            if not is_worth_it(error) or loop.time() + pause > give_up_at:
                raise
        await asyncio.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * 2)
