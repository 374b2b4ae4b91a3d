"""The connected workers and the supply of idle streams they offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.worker_streams import (
    Offer,
    OutgoingFrame,
    Phase,
    Registered,
    StreamPool,
    Worker,
    WorkerStream,
)

SETTLED: Final = 0.01
SETTLED_IN_CHANGE: Final = 0.05
"""How long, in seconds, a stream must have been idle before a task goes out on it that cannot go
out again; the second where the worker may be about to retire one of its streams."""
SETTLING_IN: Final = 0.2
"""For this long a worker's steady pool is left alone, so that its idle streams can be counted."""


class WorkerTable:
    """Keeps track of workers, their pools and their idle streams."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._workers: dict[str, Worker] = {}
        self._by_flow_type: dict[str, dict[Worker, None]] = {}
        self.streams_opened = 0

    # --- workers ---------------------------------------------------------------------------------

    def worker(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def serving(self, flow_type: str) -> dict[Worker, None]:
        """The connected workers that registered a flow type."""
        return self._by_flow_type.get(flow_type, {})

    def streams(self) -> list[WorkerStream]:
        return [
            stream
            for worker in self._workers.values()
            for pool in worker.pools.values()
            for stream in (*pool.acknowledged, *pool.spares)
        ]

    # --- streams ---------------------------------------------------------------------------------

    def open_stream(
        self,
        worker_id: str,
        queue: str,
        flow_types: frozenset[str],
        send: Callable[[OutgoingFrame], None],
        close: Callable[[], None],
    ) -> WorkerStream:
        self.streams_opened += 1
        now = self._clock.monotonic()
        worker = self._workers.get(worker_id)
        if worker is None:
            worker = self._workers[worker_id] = Worker(worker_id, flow_types, born_at=now)
        for flow_type in flow_types:
            self._by_flow_type.setdefault(flow_type, {})[worker] = None
        worker.flow_types |= flow_types
        pool = worker.pools.get(queue)
        if pool is None:
            pool = worker.pools[queue] = StreamPool(worker, queue)
        stream = WorkerStream(pool, send, close, idle_since=now, last_frame_at=now)
        pool.spares[stream] = None
        pool.stream_opened()
        # What one pool taught about the worker holds for the others.
        for each in worker.pools.values():
            self.acknowledge(each)
        return stream

    def close_stream(self, stream: WorkerStream, *, retired: bool) -> Offer | None:
        """Forgets a stream; returns the offer that was out on it."""
        pool, worker = stream.pool, stream.worker
        offer = self.detach(stream)
        if retired and stream.phase in (Phase.IDLE, Phase.OFFERED):
            pool.stream_retired()
        stream.phase = Phase.CLOSED
        for streams in (pool.spares, pool.acknowledged, pool.idle):
            streams.pop(stream, None)
        if worker.has_streams():
            self.acknowledge(pool)
        else:
            del self._workers[worker.worker_id]
            for flow_type in worker.flow_types:
                known = self._by_flow_type[flow_type]
                known.pop(worker, None)
                if not known:
                    del self._by_flow_type[flow_type]
        return offer

    def attach(self, stream: WorkerStream, offer: Offer) -> None:
        """An offer goes out on an idle stream."""
        stream.pool.idle.pop(stream, None)
        stream.pool.was_used = True
        stream.phase = Phase.OFFERED
        stream.offer = offer
        stream.worker.busy += 1

    def detach(self, stream: WorkerStream) -> Offer | None:
        """The offer on a stream has been answered, or will never be."""
        offer = stream.offer
        if offer is None:
            return None
        stream.offer = None
        stream.worker.busy -= 1
        if offer.counted_long:
            offer.counted_long = False
            stream.pool.long_running -= 1
        if offer.task.offer is offer:
            offer.task.offer = None
        return offer

    def set_idle(self, stream: WorkerStream) -> None:
        stream.phase = Phase.IDLE
        stream.idle_since = self._clock.monotonic()
        stream.pool.idle[stream] = None

    def acknowledge(self, pool: StreamPool) -> None:
        """Acknowledges spares until the pool has all the streams it should have."""
        while pool.spares and pool.missing > 0:
            stream = next(iter(pool.spares))
            del pool.spares[stream]
            pool.acknowledged[stream] = None
            self.set_idle(stream)
            stream.send(Registered())

    def count_long(self, offer: Offer) -> None:
        """The task runs for long: its stream does not count as one that is free again soon."""
        if not offer.counted_long:
            offer.counted_long = True
            offer.stream.pool.long_running += 1
            self.acknowledge(offer.stream.pool)

    # --- choosing --------------------------------------------------------------------------------

    def idle_stream(self, worker: Worker) -> WorkerStream | None:
        """A stream for a task that may go out again.

        The steady pool is used last, and never to its last stream.
        """
        for pool in worker.pools.values():
            if pool.idle and not pool.is_steady:
                return next(iter(pool.idle))
        steady = worker.pools.get(worker.worker_id)
        if steady is None or len(steady.idle) < 2 or self._settles_in(worker):
            return None
        # The newest, so that the oldest stays idle for long enough.
        return next(reversed(steady.idle))

    def settled_stream(
        self, worker: Worker, *, anywhere: bool
    ) -> tuple[WorkerStream | None, float]:
        """A stream for a task that cannot go out again.

        Args:
            worker: The worker.
            anywhere: Whether a stream that might be retired will do.

        Returns:
            The stream, if there is one, and else the time at which to look again.
        """
        now = self._clock.monotonic()
        look_again = now + SETTLED_IN_CHANGE
        if self._settles_in(worker):
            return None, worker.born_at + SETTLING_IN
        for pool in worker.pools.values():
            if not pool.idle or not (pool.is_steady or anywhere):
                continue
            stream = next(iter(pool.idle))
            settled_at = stream.idle_since + (SETTLED_IN_CHANGE if pool.may_retire else SETTLED)
            if settled_at <= now:
                return stream, now
            look_again = min(look_again, settled_at)
        return None, look_again

    def _settles_in(self, worker: Worker) -> bool:
        return self._clock.monotonic() < worker.born_at + SETTLING_IN
