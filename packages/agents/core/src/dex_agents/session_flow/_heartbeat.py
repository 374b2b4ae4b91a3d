"""Signs of life while a model or a tool works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from dex import AsyncContext

from dex_agents.options import StepLimits
from dex_agents.session_flow._loop_watch import LoopWatch

#: Seconds between two heartbeats at most; the shortest timeout an engine accepts is 10 seconds.
HEARTBEAT_SECONDS: Final = 20.0
#: Heartbeats within one heartbeat timeout at least, so that a late one costs nothing.
_BEATS_PER_TIMEOUT: Final = 4

_LOG = logging.getLogger("dex_agents")


def heartbeat_interval(limits: StepLimits) -> float:
    """Return the seconds between two heartbeats of a Step with these limits."""
    return min(HEARTBEAT_SECONDS, limits.heartbeat_timeout.total_seconds() / _BEATS_PER_TIMEOUT)


@asynccontextmanager
async def keep_alive(
    context: AsyncContext, what: str, watch: LoopWatch, interval: float = HEARTBEAT_SECONDS
) -> AsyncGenerator[None]:
    """Send heartbeats in the background until the block ends.

    Args:
        context: Context of the running Step.
        what: What runs, for the log.
        watch: Tells in the log when this call blocks the event loop, which stops the heartbeats.
        interval: Seconds between two heartbeats.
    """
    beating = asyncio.create_task(_beat(context, interval), name=f"heartbeat of {what}")
    try:
        with watch.running(what):
            yield
    finally:
        beating.cancel()
        # `wait` does not raise what the task raises, and passes a cancellation of ours through.
        await asyncio.wait({beating})
        if not beating.cancelled() and (error := beating.exception()) is not None:
            _LOG.warning("the heartbeat of %s stopped: %r", what, error)


async def _beat(context: AsyncContext, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        await context.heartbeat()
