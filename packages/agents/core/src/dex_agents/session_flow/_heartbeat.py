"""Signs of life while a model or a tool works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from dex import AsyncContext

#: Seconds between two heartbeats; the shortest timeout an engine accepts is 10 seconds.
HEARTBEAT_SECONDS: Final = 20.0
#: A heartbeat this late means that something blocked the event loop.
_LATE_SECONDS: Final = 5.0

_LOG = logging.getLogger("dex_agents")


@asynccontextmanager
async def keep_alive(
    context: AsyncContext, what: str, interval: float = HEARTBEAT_SECONDS
) -> AsyncGenerator[None]:
    """Send heartbeats in the background until the block ends.

    Args:
        context: Context of the running Step.
        what: What runs, for the log line about a blocked event loop.
        interval: Seconds between two heartbeats.
    """
    beating = asyncio.create_task(_beat(context, what, interval), name=f"heartbeat of {what}")
    try:
        yield
    finally:
        beating.cancel()
        # `wait` does not raise what the task raises, and passes a cancellation of ours through.
        await asyncio.wait({beating})
        if not beating.cancelled() and (error := beating.exception()) is not None:
            _LOG.warning("the heartbeat of %s stopped: %r", what, error)


async def _beat(context: AsyncContext, what: str, interval: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        asleep_at = loop.time()
        await asyncio.sleep(interval)
        late = loop.time() - asleep_at - interval
        if late > _LATE_SECONDS:
            _LOG.warning(
                "the event loop was blocked for %.0f s while %s was running; "
                "run blocking code in a thread, or the engine may take this worker for dead",
                late,
                what,
            )
        await context.heartbeat()
