"""What the wire reports about worker streams; each event goes to the Step or RPC it concerns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from dex_embedded._kernel.values import (
    ExecuteResult,
    Failure,
    Method,
    RpcResult,
    WaitForResult,
)
from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.dispatcher import Dispatcher
from dex_embedded._runtime.log_fields import about
from dex_embedded._runtime.rpc_work import RpcWork
from dex_embedded._runtime.step_work import StepAttempt, StepWork
from dex_embedded._runtime.stream_log import StreamLog
from dex_embedded._runtime.worker_streams import (
    Offer,
    OutgoingFrame,
    Phase,
    Ping,
    Reconnect,
    WorkerStream,
)

_LOGGER = logging.getLogger(__name__)

_FRAME_COSTS: Final = 512
"""What a frame takes up in memory beside its value, roughly."""
PING_EVERY: Final = 30.0
DEAD_AFTER: Final = 75.0
"""An idle stream that leaves pings unanswered this long is taken for dead."""


class WorkerCalls:
    """The engine's side of `PollWorkerTask`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        steps: StepWork,
        rpcs: RpcWork,
        streams: StreamLog,
        clock: Clock,
    ) -> None:
        self._dispatcher = dispatcher
        self._steps = steps
        self._rpcs = rpcs
        self._streams = streams
        self._clock = clock
        self._no_task_left: asyncio.Event | None = None

    # --- streams ---------------------------------------------------------------------------------

    def stream_opened(
        self,
        worker_id: str,
        queue: str,
        flow_types: frozenset[str],
        send: Callable[[OutgoingFrame], None],
        close: Callable[[], None],
    ) -> WorkerStream:
        return self._dispatcher.stream_opened(worker_id, queue, flow_types, send, close)

    def frame_arrived(self, stream: WorkerStream) -> None:
        stream.last_frame_at = self._clock.monotonic()

    def answered_ping(self, stream: WorkerStream) -> None:
        self._dispatcher.answered_ping(stream)

    def stream_retired(self, stream: WorkerStream) -> None:
        """The worker half-closed the stream."""
        offer = self._dispatcher.stream_closed(stream, retired=True)
        self._tell_if_drained()
        if offer is None:
            return
        if not offer.sent:
            self._returned(offer)
        elif _is_step(offer):
            self._steps.dropped(offer)
        else:
            self._rpcs.lost(offer, retired=True)

    def end_stream(self, stream: WorkerStream) -> None:
        """Gives a stream no more tasks, and ends it once the one it carries is answered."""
        self._dispatcher.leave(stream)

    def stream_lost(self, stream: WorkerStream) -> None:
        """The stream broke. Does nothing if it was retired before."""
        offer = self._dispatcher.stream_closed(stream, retired=False)
        self._tell_if_drained()
        if offer is None:
            return
        if not offer.sent:
            self._returned(offer)
        elif _is_step(offer):
            self._steps.lost(offer)
        else:
            self._rpcs.lost(offer, retired=False)

    def check_idle_streams(self) -> None:
        """Pings streams that have been silent, and closes those that stay so."""
        now = self._clock.monotonic()
        for stream in self._dispatcher.table.streams():
            silence = now - stream.last_frame_at
            if stream.phase is not Phase.IDLE or silence < PING_EVERY:
                continue
            if silence >= DEAD_AFTER:
                _LOGGER.warning(
                    "worker %s: an idle stream is dead",
                    stream.worker.worker_id,
                    extra=about(worker=stream.worker.worker_id),
                )
                stream.close()
            elif now - stream.pinged_at >= PING_EVERY:
                stream.pinged_at = now
                stream.send(Ping())

    def ask_to_reconnect(self, reason: str) -> None:
        """Asks every worker to finish what runs on its streams and to open new ones later."""
        for stream in self._dispatcher.table.streams():
            stream.send(Reconnect(reason))

    def close_streams(self) -> None:
        for stream in self._dispatcher.table.streams():
            stream.close()

    async def drained(self, timeout: float) -> None:
        """Returns once no worker has a task in its hands, or after `timeout` seconds."""
        self._no_task_left = asyncio.Event()
        self._tell_if_drained()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._no_task_left.wait()

    def _tell_if_drained(self) -> None:
        if self._no_task_left is None:
            return
        if all(stream.offer is None for stream in self._dispatcher.table.streams()):
            self._no_task_left.set()

    # --- frames of a task ------------------------------------------------------------------------

    def expects(self, offer: Offer) -> Method | None:
        """The method whose output answers the offer; None for an RPC."""
        attempt = offer.task.reference
        return attempt.ref.method if isinstance(attempt, StepAttempt) else None

    def rejected(self, stream: WorkerStream, *, name_unknown: bool) -> None:
        if name_unknown:
            offer = self._dispatcher.name_unknown(stream)
            if offer is not None:
                _LOGGER.warning(
                    "worker %s does not know %s %r of flow type %r; another worker has to take it",
                    stream.worker.worker_id,
                    offer.task.task_class.value,
                    offer.task.name,
                    offer.task.flow_type,
                    extra=about(
                        worker=stream.worker.worker_id,
                        flow_type=offer.task.flow_type,
                        step=offer.task.name,
                    ),
                )
        else:
            offer = self._dispatcher.declined(stream)
        if offer is not None:
            self._returned(offer)

    def heartbeat(self, offer: Offer, value: bytes | None) -> None:
        if not offer.gave_up:
            offer.stream.unsaved += _FRAME_COSTS + len(value or b"")
            self._steps.heartbeat(offer, value)

    def stream_write(self, offer: Offer, stream_name: str, capacity: int, value: bytes) -> None:
        attempt = offer.task.reference
        if offer.gave_up or not isinstance(attempt, StepAttempt):
            return
        offer.stream.unsaved += _FRAME_COSTS + len(value)
        self._steps.beat(offer)
        run = attempt.resident.run
        self._streams.write_from_step(
            run.flow_type, stream_name, run.flow_id, attempt.ref.step_execution_id, capacity, value
        )

    async def saved(self, stream: WorkerStream) -> None:
        """Returns once everything the stream has sent so far is on disk."""
        await self._streams.saved()
        stream.unsaved = 0

    def wait_for_finished(self, offer: Offer, result: WaitForResult) -> None:
        self._steps.wait_for_finished(offer, result)
        self._tell_if_drained()

    def execute_finished(self, offer: Offer, result: ExecuteResult) -> None:
        self._steps.execute_finished(offer, result)
        self._tell_if_drained()

    def rpc_finished(self, offer: Offer, result: RpcResult) -> None:
        self._rpcs.finished(offer, result)
        self._tell_if_drained()

    def failed(self, offer: Offer, failure: Failure) -> None:
        if _is_step(offer):
            self._steps.failed(offer, failure)
        else:
            self._rpcs.failed(offer, failure)
        self._tell_if_drained()

    def _returned(self, offer: Offer) -> None:
        if _is_step(offer):
            self._steps.returned(offer)
        else:
            self._rpcs.returned(offer)


def _is_step(offer: Offer) -> bool:
    return isinstance(offer.task.reference, StepAttempt)
