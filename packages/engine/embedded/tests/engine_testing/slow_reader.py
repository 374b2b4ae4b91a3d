"""A client of the wire that asks and never takes an answer, written in plain HTTP/2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from google.protobuf.message import Message

_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW_SIZE = 4


class SlowReader:
    """One connection whose receive window is empty, so no reply ever leaves the server."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._next_stream = 1

    def ask(self, method: str, request: Message) -> None:
        """Sends one unary call."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/dex.FlowService/{method}"),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        )
        block = b"".join(_literal(name, value) for name, value in headers)
        self._send(_HEADERS, _END_HEADERS, stream, block)
        payload = request.SerializeToString()
        prefix = b"\x00" + len(payload).to_bytes(4, "big")
        self._send(_DATA, _END_STREAM, stream, prefix + payload)

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
        self._writer.write(head + payload)

    def greet(self) -> None:
        """The preface, with settings that leave the server no room to send data."""
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        settings = _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + (0).to_bytes(4, "big")
        self._send(_SETTINGS, 0, 0, settings)
        self._send(_SETTINGS, _ACK, 0, b"")


def _literal(name: str, value: str) -> bytes:
    """A header field that is neither indexed nor compressed."""
    return b"\x00" + b"".join(
        bytes((len(text),)) + text for text in (name.encode(), value.encode())
    )


@asynccontextmanager
async def slow_reader(address: str) -> AsyncGenerator[SlowReader]:
    """A connection that is closed when the block ends."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def discard() -> None:
        # Settings, pings and headers are read; there is no data to read.
        while await reader.read(65_536):
            pass

    discarding = asyncio.create_task(discard())
    try:
        client = SlowReader(writer)
        client.greet()
        yield client
    finally:
        discarding.cancel()
        writer.close()
