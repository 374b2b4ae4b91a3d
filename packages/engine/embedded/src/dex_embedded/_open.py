"""The engine inside a process."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dex_embedded._runtime.bounds import DEFAULT_BOUNDS, Bounds
from dex_embedded._runtime.engine import DATA_FILE, DRAIN_SECONDS, Engine
from dex_embedded._store.sqlite import Synchronous
from dex_embedded._wire import codec
from dex_embedded._wire.server import serve
from dex_embedded._wire.token_file import TokenFile


class NotLoopbackError(ValueError):
    """The engine was asked to listen where other machines reach it, without a token file.

    Attributes:
        host: The address that was refused.
    """

    def __init__(self, host: str) -> None:
        super().__init__(
            f"{host} is not a loopback address. Without a token file the engine lets everybody in,"
            " so it listens on 127.0.0.1, ::1 or localhost only; give it one to listen elsewhere"
        )
        self.host = host


@dataclass(frozen=True)
class OpenEngine:
    """A running engine.

    Attributes:
        address: Where clients and workers reach it, as `host:port`.
        data_file: The file that holds everything.
    """

    address: str
    data_file: Path
    _engine: Engine

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Calls back on the loop once the engine cannot go on, with the reason."""
        self._engine.failed.add_done_callback(lambda failed: callback(failed.result()))

    async def wait_failed(self) -> BaseException:
        """Returns once the engine cannot go on, with the reason: it could not write any more."""
        # Whoever gives up waiting must not cancel what others wait for.
        return await asyncio.shield(self._engine.failed)


def data_file_of(folder: Path) -> Path:
    """Where the data of a data folder is."""
    return folder / DATA_FILE


@asynccontextmanager
async def open_engine(
    path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token_file: str | os.PathLike[str] | None = None,
    synchronous: Synchronous = "FULL",
    drain_seconds: float = DRAIN_SECONDS,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> AsyncGenerator[OpenEngine]:
    """Runs an engine in this process, on this event loop, until the block ends.

    A handler that blocks the loop blocks the engine with it; use the `dex-embedded` command when
    handlers may block, or when several processes share one engine.

    Args:
        path: The data folder. Made if it is missing; `dex.sqlite3` in it holds everything.
        host: A loopback address; any address when there is a token file.
        port: The port to listen on; 0 picks a free one.
        token_file: A file of access tokens, one a line, that only its owner and group may read.
            With it every call and every worker stream must carry one of them (the SDK's
            `Credential`). The file may change at any time.
        synchronous: `FULL` keeps what was acknowledged through a power cut. `NORMAL` may lose the
            last commits in one (never in a crash of the process), and spares a disk flush each.
        drain_seconds: How long the end of the block waits for tasks that are running.
        bounds: How much it holds in memory for clients and workers at most.

    Yields:
        The running engine.

    Raises:
        NotLoopbackError: `host` can be reached from other machines, and there is no token file.
        TokenFileError: The token file cannot be used.
        StoreUnusableError: The data file cannot be used: in use, foreign, damaged, or newer.
        OSError: The folder cannot be made, or the port cannot be bound.
    """
    tokens = None if token_file is None else TokenFile(Path(token_file))
    if tokens is None:
        _check_loopback(host)
    folder = Path(path)
    engine = Engine.open(folder, codec, synchronous=synchronous, bounds=bounds)
    try:
        server = await serve(engine, host, port, metadata.version("dex-embedded"), tokens)
        try:
            engine.start()
            yield OpenEngine(server.address, data_file_of(folder), engine)
        finally:
            await engine.stop(drain_seconds)
            await server.stop(0.5)
    finally:
        await engine.close()


def _check_loopback(host: str) -> None:
    if host == "localhost":
        return
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise NotLoopbackError(host)
