"""The connected workers and the supply of idle streams they offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.worker_streams import (
    Offer,
    OutgoingFrame,
    Phase,
    Ping,
    Registered,
    StreamPool,
    Worker,
    WorkerStream,
)

SETTLED: Final = 0.01
"""How long, in seconds, a stream must have been idle before a task goes out on it that cannot go
out again."""
ASK_AGAIN: Final = 0.05
SETTLING_IN: Final = 0.2
"""For this long a worker's steady pool is left alone, so that its idle streams can be counted."""


class WorkerTable:
    """Keeps track of workers, their pools and their idle streams.

    Attributes:
        streams_opened: Streams that workers have opened so far.
        tasks_out: Offers that are on a stream now.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._workers: dict[str, Worker] = {}
        self._by_flow_type: dict[str, dict[Worker, None]] = {}
        self.streams_opened = 0
        self.tasks_out = 0

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
        pool.unproven.discard(stream)
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
        self.tasks_out += 1

    def detach(self, stream: WorkerStream) -> Offer | None:
        """The offer on a stream has been answered, or will never be."""
        offer = stream.offer
        if offer is None:
            return None
        stream.offer = None
        stream.worker.busy -= 1
        self.tasks_out -= 1
        if offer.counted_running:
            offer.counted_running = False
            stream.pool.running -= 1
        self.release(offer)
        if offer.task.offer is offer:
            offer.task.offer = None
        return offer

    def set_idle(self, stream: WorkerStream) -> bool:
        """True if the stream can take a task; else its worker has been asked whether it can."""
        stream.phase = Phase.IDLE
        stream.idle_since = self._clock.monotonic()
        stream.confirmed = False
        if stream.pool.missing < 0:
            self.ask(stream)
            return False
        stream.pool.idle[stream] = None
        return True

    def ask(self, stream: WorkerStream) -> None:
        """Pings the stream; `answered_ping` tells what the answer means."""
        stream.asked_at = self._clock.monotonic()
        stream.send(Ping())

    def acknowledge(self, pool: StreamPool) -> None:
        """Acknowledges spares until the pool has all the streams it should have."""
        while pool.spares and pool.missing > 0 and not pool.guards:
            stream = next(iter(pool.spares))
            del pool.spares[stream]
            pool.acknowledged[stream] = None
            stream.phase = Phase.IDLE
            stream.idle_since = self._clock.monotonic()
            stream.send(Registered())
            if pool.may_retire:
                pool.unproven.add(stream)
                self.ask(stream)
            else:
                pool.idle[stream] = None

    def guard(self, offer: Offer) -> None:
        """Holds acknowledgements back until the worker has read this offer's task."""
        if not offer.stream.pool.is_steady:
            offer.guarded = True
            offer.stream.pool.guards += 1

    def release(self, offer: Offer) -> None:
        """The worker has read the task, or never will."""
        if offer.guarded:
            offer.guarded = False
            offer.stream.pool.guards -= 1
            self.acknowledge(offer.stream.pool)

    def answered_ping(self, stream: WorkerStream) -> bool:
        """Notes a pong. True if there may be a stream for a task that waits now."""
        offer = stream.offer
        stream.pool.unproven.discard(stream)
        if offer is not None:
            self.release(offer)
            if offer.asked and not offer.counted_running:
                offer.counted_running = True
                stream.pool.running += 1
                self.acknowledge(stream.pool)
                return True
            return False
        if stream.phase is not Phase.IDLE or stream.asked_at < stream.idle_since:
            return False
        stream.confirmed = True
        stream.pool.idle[stream] = None
        return True

    def ask_silent_streams(self) -> bool:
        """Asks again where the worker left a ping unanswered because it was tidying up.

        Returns:
            Whether there is a stream that has not answered yet.
        """
        now = self._clock.monotonic()
        silent = [
            stream
            for stream in self.streams()
            if stream.phase is Phase.IDLE and stream not in stream.pool.idle
        ]
        for stream in silent:
            if now - stream.asked_at >= ASK_AGAIN:
                self.ask(stream)
        return bool(silent)

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

    def steady_stream(self, worker: Worker) -> tuple[WorkerStream | None, float]:
        """A stream that cannot be retired, for a task that cannot go out again.

        Returns:
            The stream, if there is one, and else the time at which to look again.
        """
        now = self._clock.monotonic()
        if self._settles_in(worker):
            return None, worker.born_at + SETTLING_IN
        steady = worker.pools.get(worker.worker_id)
        if steady is None or not steady.idle or steady.may_retire:
            return None, now + SETTLED
        stream = next(iter(steady.idle))
        settled_at = stream.idle_since + SETTLED
        return (stream, now) if settled_at <= now else (None, settled_at)

    def confirmed_stream(self, worker: Worker) -> tuple[WorkerStream | None, float]:
        """Any stream on which the worker has answered a ping since it became idle.

        Without one, the worker is asked on the stream that has been idle for longest. It may leave
        a ping unanswered that it reads while it tidies up, so it is asked again after a while.

        Returns:
            The stream, if there is one, and else the time at which to look again.
        """
        now = self._clock.monotonic()
        if self._settles_in(worker):
            return None, worker.born_at + SETTLING_IN
        idle = [
            stream for pool in worker.pools.values() if not pool.unproven for stream in pool.idle
        ]
        for stream in idle:
            if stream.confirmed:
                return stream, now
        for stream in idle:
            if now - stream.asked_at >= ASK_AGAIN:
                self.ask(stream)
                break
        return None, now + ASK_AGAIN

    def _settles_in(self, worker: Worker) -> bool:
        return self._clock.monotonic() < worker.born_at + SETTLING_IN
