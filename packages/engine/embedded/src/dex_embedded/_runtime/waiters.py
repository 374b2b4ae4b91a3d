"""Calls that wait for something to change: long polls of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from dex_embedded._runtime.call_errors import CallError, CallErrorKind


class Waiters:
    """Wakes whoever waits for a key. A waiter looks again by itself whether its wish came true."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[asyncio.Future[None]]] = {}
        self._stopped = False

    def notify(self, key: Hashable) -> None:
        """Something about `key` has changed, durably."""
        for future in self._waiting.pop(key, ()):
            if not future.done():
                future.set_result(None)

    async def changed(self, key: Hashable, timeout: float) -> bool:
        """Waits for the next change of `key`; False if `timeout` seconds pass without one.

        Raises:
            CallError: The engine is stopping; the call can be repeated when it is back.
        """
        if self._stopped:
            raise _stopping()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiting[key]
        return True

    def stop(self) -> None:
        """Ends all waits with a retryable error, now and from now on."""
        self._stopped = True
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(_stopping())
        self._waiting.clear()


def _stopping() -> CallError:
    return CallError(CallErrorKind.STOPPING, "the engine is stopping; try again when it is back")
