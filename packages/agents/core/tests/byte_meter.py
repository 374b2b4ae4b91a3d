"""A relay that counts the bytes between a worker or client and its engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class ByteMeter:
    """Counts what passes.

    Attributes:
        address: `host:port` to connect to instead of the engine's.
        from_engine: Bytes that the engine has sent.
        to_engine: Bytes that it was sent.
    """

    address: str = ""
    from_engine: int = 0
    to_engine: int = 0


@asynccontextmanager
async def metered(server_address: str) -> AsyncGenerator[ByteMeter]:
    """Relay connections to an engine until the block ends."""
    meter = ByteMeter()
    host, _, port = server_address.rpartition(":")
    writers: set[asyncio.StreamWriter] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection(host, int(port))
        writers.update((writer, engine_writer))
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, engine_writer, meter, from_engine=False))
            group.create_task(_pump(engine_reader, writer, meter, from_engine=True))
        writers.difference_update((writer, engine_writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        meter.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield meter
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    meter: ByteMeter,
    *,
    from_engine: bool,
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            if from_engine:
                meter.from_engine += len(data)
            else:
                meter.to_engine += len(data)
            writer.write(data)
            await writer.drain()
    writer.close()
