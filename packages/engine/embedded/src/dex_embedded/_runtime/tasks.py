"""Tasks that live as long as a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def alongside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[asyncio.Task[None]]:
    """Runs `work` next to the block; when the block ends it is cancelled, and its end awaited.

    Yields the task, so that a block may wait for the end of `work`.

    An error of `work` is not raised: the block notices by itself that what it needs is gone.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
