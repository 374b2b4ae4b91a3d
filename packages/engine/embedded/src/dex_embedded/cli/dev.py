"""`dex-embedded dev`: one engine in the foreground."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from dex_embedded._open import open_engine
from dex_embedded._runtime.bounds import Bounds
from dex_embedded._runtime.failure_text import describe_failure
from dex_embedded._store.sqlite import Synchronous

_LOGGER = logging.getLogger(__name__)


async def serve_until_stopped(
    data_dir: Path,
    host: str,
    port: int,
    *,
    token_file: Path | None,
    synchronous: Synchronous,
    drain_seconds: float,
    bounds: Bounds,
    announce: Callable[[str, Path, int], None],
) -> None:
    """Serves until SIGINT or SIGTERM, then drains; a second signal ends the process at once.

    Args:
        data_dir: Folder of the data file.
        host: A loopback address; any address when there is a token file.
        port: The port; 0 picks a free one.
        token_file: The access tokens; everybody is let in without one.
        synchronous: How commits reach the disk.
        drain_seconds: How long the first signal lets running tasks finish.
        bounds: How much it holds in memory at most.
        announce: Called with address, data file and process id when the engine is ready.

    Raises:
        OSError: The engine cannot listen, or cannot write any more.
        StoreError: The data file cannot be used.
        ValueError: The address may not be listened on, or the token file cannot be used.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def stop() -> None:
        if ended.done():
            # Everything acknowledged is on disk; the rest counts as lost when the engine is back.
            os._exit(130)
        _LOGGER.info("stopping: running tasks have %g seconds", drain_seconds)
        ended.set_result(None)

    def fail(error: BaseException) -> None:
        if not ended.done():
            ended.set_result(error)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    async with open_engine(
        data_dir,
        host=host,
        port=port,
        token_file=token_file,
        synchronous=synchronous,
        drain_seconds=drain_seconds,
        bounds=bounds,
    ) as engine:
        engine.on_failure(fail)
        announce(engine.address, engine.data_file, os.getpid())
        _LOGGER.info("ready at %s with data file %s", engine.address, engine.data_file)
        failure = await ended
        if failure is not None:
            raise OSError(f"the engine had to stop: {describe_failure(failure)}")
    _LOGGER.info("stopped")
