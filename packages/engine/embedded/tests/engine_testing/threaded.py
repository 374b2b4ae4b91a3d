"""An engine on a thread and loop of its own, for tests that are not asynchronous themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from dex_embedded import open_engine


@contextmanager
def engine_thread(data_dir: Path) -> Generator[str]:
    """Yields the address of an engine that is closed when the block ends."""
    ready: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with open_engine(data_dir, synchronous="NORMAL", drain_seconds=0.1) as engine:
            ended = asyncio.Event()
            ready.set_result((engine.address, asyncio.get_running_loop(), ended))
            await ended.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run, name="engine-of-a-test")
    thread.start()
    try:
        address, loop, ended = ready.result(30)
        yield address
        loop.call_soon_threadsafe(ended.set)
    finally:
        thread.join(30)
