"""Streams: ordered, bounded logs beside the flows."""

from __future__ import annotations

import base64
import hashlib
import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dex_embedded._runtime.call_errors import CallError, CallErrorKind, invalid
from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.faults import STREAM_AFTER, STREAM_BEFORE, Faults
from dex_embedded._runtime.log_fields import about
from dex_embedded._runtime.waiters import Waiters
from dex_embedded._store.errors import StreamCapacityError
from dex_embedded._store.protocol import Store, StreamMessage, StreamScope, Ticket

_LOGGER = logging.getLogger(__name__)

MAXIMUM_MESSAGE_BYTES: Final = 102_400
MAXIMUM_PAGE: Final = 1_000
MAXIMUM_WAIT: Final = 60.0


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """One flow's part of a stream."""

    scope: StreamScope
    flow_id: str

    def token(self, message_id: int) -> str:
        """An opaque position in this stream. Ids never repeat, so tokens survive restarts."""
        raw = message_id.to_bytes(8, "big") + self._digest()
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    def position(self, token: str) -> int:
        """The message id behind a token.

        Raises:
            CallError: It is malformed, or belongs to another stream.
        """
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except ValueError:
            raise invalid("the stream token is malformed") from None
        if len(raw) != 16 or raw[8:] != self._digest():
            raise invalid("the stream token is malformed or belongs to another stream")
        return int.from_bytes(raw[:8], "big")

    def _digest(self) -> bytes:
        return _digest_of(self.scope.flow_type, self.scope.stream_name, self.flow_id)


@lru_cache(maxsize=4_096)
def _digest_of(*parts: str) -> bytes:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).digest()[:8]


@dataclass(frozen=True, slots=True)
class StreamPage:
    messages: tuple[StreamMessage, ...]
    next_token: str


class StreamLog:
    """Writes to and reads from streams."""

    def __init__(self, store: Store, waiters: Waiters, clock: Clock, faults: Faults) -> None:
        self._store = store
        self._waiters = waiters
        self._clock = clock
        self._faults = faults

    async def write(self, stream: StreamIdentity, value: bytes, source: str, capacity: int) -> None:
        """A client's write; returns once it is durable.

        Raises:
            CallError: The message is too large for streams, or for this one.
        """
        if len(value) > MAXIMUM_MESSAGE_BYTES:
            raise CallError(
                CallErrorKind.RESOURCE_EXHAUSTED,
                f"a stream message of {len(value):,} bytes is over the limit of"
                f" {MAXIMUM_MESSAGE_BYTES:,}",
            )
        try:
            _, ticket = self._append(stream, value, source, capacity, hurried=True)
        except StreamCapacityError as error:
            raise CallError(CallErrorKind.RESOURCE_EXHAUSTED, str(error)) from None
        await ticket.wait()

    def write_from_step(
        self,
        flow_type: str,
        stream_name: str,
        flow_id: str,
        step_execution_id: str,
        capacity: int,
        value: bytes,
    ) -> None:
        """A write by a running handler. What cannot be stored is dropped: it never fails a Step."""
        stream = StreamIdentity(StreamScope(flow_type=flow_type, stream_name=stream_name), flow_id)
        if len(value) > MAXIMUM_MESSAGE_BYTES or capacity <= 0 or not stream_name:
            _LOGGER.warning(
                "flow %s: dropped a message of stream %s",
                flow_id,
                stream_name,
                extra=about(flow_id=flow_id, flow_type=flow_type, stream=stream_name),
            )
            return
        try:
            # In no hurry: what a Step writes shortly before its end goes into the commit of that.
            self._append(stream, value, f"#{step_execution_id}", capacity, hurried=False)
        except StreamCapacityError as error:
            _LOGGER.warning(
                "flow %s: dropped a stream message: %s",
                flow_id,
                error,
                extra=about(flow_id=flow_id, flow_type=flow_type, stream=stream_name),
            )

    def _append(
        self, stream: StreamIdentity, value: bytes, source: str, capacity: int, *, hurried: bool
    ) -> tuple[int, Ticket]:
        self._faults.reach(STREAM_BEFORE, stream.scope.stream_name)
        message_id, ticket = self._store.append_stream_message(
            stream.scope,
            stream.flow_id,
            value=value,
            source=source,
            created_at=self._clock.wall(),
            capacity=capacity,
            hurried=hurried,
        )

        def made_durable() -> None:
            self._faults.reach(STREAM_AFTER, stream.scope.stream_name)
            self._waiters.notify(stream)

        ticket.add_callback(made_durable)
        return message_id, ticket

    async def saved(self) -> None:
        """Returns once everything staged so far is on disk."""
        await self._store.stage().wait()

    async def read(self, stream: StreamIdentity, resume_token: str, wait: int) -> StreamMessage:
        """The first message after the token, waiting for it if need be.

        Args:
            stream: The stream.
            resume_token: A position; empty for the oldest retained message.
            wait: Seconds; 0, or more than a minute, is a minute.

        Raises:
            CallError: The token is bad, or no message came in time.
        """
        after = stream.position(resume_token) if resume_token else 0
        ends_at = self._clock.monotonic() + wait_seconds(wait)
        while True:
            message = self._store.next_stream_message(stream.scope, stream.flow_id, after)
            if message is not None:
                return message
            left = ends_at - self._clock.monotonic()
            if left <= 0 or not await self._waiters.changed(stream, left):
                raise CallError(CallErrorKind.LONG_POLL_TIMEOUT, "no stream message came in time")

    def list(self, stream: StreamIdentity, page_size: int, before_token: str) -> StreamPage:
        """Retained messages, newest first.

        Raises:
            CallError: The page size or the token is bad.
        """
        if page_size < 1:
            raise invalid("page_size must be at least 1")
        before: int | None = None
        if before_token:
            before = stream.position(before_token)
            if not self._store.has_stream_message(stream.scope, stream.flow_id, before):
                return StreamPage((), "")
        limit = min(page_size, MAXIMUM_PAGE)
        found = list(
            self._store.list_stream_messages(stream.scope, stream.flow_id, before, limit + 1)
        )
        page = tuple(found[:limit])
        return StreamPage(page, stream.token(page[-1].id) if len(found) > limit else "")


def wait_seconds(asked: int) -> float:
    """How long a long poll may take: what was asked, but no more than a minute."""
    return float(asked) if 0 < asked <= MAXIMUM_WAIT else MAXIMUM_WAIT
