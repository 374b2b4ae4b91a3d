"""Brings waiting tasks and idle worker streams together.

Everything here is synchronous and quick: events come in, at most one offer a stream goes out, and
no answer is awaited. RPCs go before Steps; within a class the oldest task goes first; a flow stays
with the worker that served it last while that worker is merely busy for a moment.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.timer import CallLater, Timer
from dex_embedded._runtime.worker_streams import (
    CancelTask,
    Capacity,
    Offer,
    OutgoingFrame,
    Phase,
    Registered,
    StreamPool,
    TaskClass,
    Worker,
    WorkerStream,
    WorkerTask,
)

STICKY_WAIT: Final = 1.0
"""How long a task waits for the busy worker that served its flow last."""
LONG_TASK: Final = 0.05
"""A task of a type that runs longer than this on average gets an extra stream."""
SETTLE: Final = 0.01
SETTLE_SURPLUS: Final = 0.05
"""How long a stream must have been idle before a task goes out on it that cannot go out again: the
second holds where the worker is about to retire one of its streams."""
QUIET: Final = 0.1
FRESH: Final = 0.02
"""A stream idle for less than this may decline because the worker is still tidying up."""
MAXIMUM_SKIPS: Final = 64
AVERAGE_WEIGHT: Final = 0.3


class Dispatcher:
    """The matching of tasks to streams.

    Args:
        hand_out: Called with each new offer. It must end in `sent` being set on the offer and the
            frame being passed to the stream, or in `hand_back`.
        clock: Measures idleness and task durations.
        call_later: Runs a function after a delay in seconds.
    """

    def __init__(
        self,
        hand_out: Callable[[Offer], None],
        clock: Clock,
        call_later: CallLater,
    ) -> None:
        self._hand_out = hand_out
        self._clock = clock
        self._call_later = call_later
        self._workers: dict[str, Worker] = {}
        self._workers_by_flow_type: dict[str, dict[Worker, None]] = {}
        self._backlog: dict[TaskClass, dict[str, dict[WorkerTask, None]]] = {
            TaskClass.RPC: {},
            TaskClass.STEP: {},
        }
        self._average: dict[tuple[str, str], float] = {}
        self._wake: tuple[float, Timer] | None = None
        self._matching = False
        self._closed = False
        self.streams_opened = 0
        self.tasks_offered = 0

    # --- streams ---------------------------------------------------------------------------------

    def stream_opened(
        self,
        worker_id: str,
        queue: str,
        flow_types: frozenset[str],
        send: Callable[[OutgoingFrame], None],
        close: Callable[[], None],
    ) -> WorkerStream:
        """Takes in a stream whose `register` was acceptable."""
        self.streams_opened += 1
        worker = self._workers.get(worker_id)
        if worker is None or worker.flow_types != flow_types:
            worker = worker or Worker(worker_id, flow_types)
            worker.flow_types = flow_types
            self._workers[worker_id] = worker
            for flow_type in flow_types:
                self._workers_by_flow_type.setdefault(flow_type, {})[worker] = None
        now = self._clock.monotonic()
        pool = worker.pools.setdefault(queue, StreamPool())
        stream = WorkerStream(worker, queue, send, close, idle_since=now, last_frame_at=now)
        pool.spares[stream] = None
        pool.stream_opened(now, QUIET)
        self._acknowledge(pool)
        self._match()
        return stream

    def stream_closed(self, stream: WorkerStream, *, retired: bool) -> Offer | None:
        """Forgets a stream.

        Args:
            stream: The stream that ended.
            retired: True if the worker half-closed it, False if it was lost.

        Returns:
            The offer that was out on it and still counts, or `None`.
        """
        if stream.phase is Phase.CLOSED:
            return None
        pool = stream.pool
        offer = self._detach_offer(stream)
        if retired and stream.phase in (Phase.IDLE, Phase.OFFERED):
            pool.idle_stream_retired()
        stream.phase = Phase.CLOSED
        pool.spares.pop(stream, None)
        pool.acknowledged.pop(stream, None)
        worker = stream.worker
        worker.idle.pop(stream, None)
        if not worker.has_streams():
            del self._workers[worker.worker_id]
            for flow_type in worker.flow_types:
                known = self._workers_by_flow_type[flow_type]
                known.pop(worker, None)
                if not known:
                    del self._workers_by_flow_type[flow_type]
        else:
            self._acknowledge(pool)
        self._match()
        return None if offer is None or offer.gave_up else offer

    def finished(self, stream: WorkerStream) -> Offer | None:
        """The worker sent a final frame: the stream is idle again.

        Returns:
            The offer it answers, or `None` if nothing was out or the engine had given it up.
        """
        offer = self._detach_offer(stream)
        if offer is None:
            return None
        now = self._clock.monotonic()
        key = (offer.task.flow_type, offer.task.profile)
        took = now - offer.offered_at
        if not offer.gave_up:
            average = self._average.get(key, took)
            self._average[key] = average + AVERAGE_WEIGHT * (took - average)
        capacity = stream.worker.capacity[offer.task.task_class]
        if offer.probe:
            capacity.probe_succeeded()
        self._set_idle(stream, now)
        self._acknowledge(stream.pool)
        self._match()
        return None if offer.gave_up else offer

    def declined(self, stream: WorkerStream) -> Offer | None:
        """The worker has no capacity for the offer: it goes back to the front of its backlog."""
        offer = self._detach_offer(stream)
        if offer is None:
            return None
        now = self._clock.monotonic()
        worker = stream.worker
        if offer.idle_before >= FRESH or offer.probe:
            worker.capacity[offer.task.task_class].declined(worker.busy, now)
        self._set_idle(stream, now)
        return None if offer.gave_up else offer

    def name_unknown(self, stream: WorkerStream) -> Offer | None:
        """The worker did not register the name: it is not asked for it again."""
        offer = self._detach_offer(stream)
        if offer is None:
            return None
        task = offer.task
        stream.worker.unknown_names.add((task.flow_type, task.task_class, task.name))
        task.unknown_to.add(stream.worker.worker_id)
        self._set_idle(stream, self._clock.monotonic())
        return None if offer.gave_up else offer

    def give_up(self, offer: Offer) -> None:
        """Ends the engine's interest in an offer: the worker is told, its answer is dropped."""
        if offer.gave_up:
            return
        offer.gave_up = True
        offer.task.offer = None
        stream = offer.stream
        if stream.offer is not offer:
            return
        if offer.sent:
            stream.phase = Phase.ABANDONED
            stream.send(CancelTask(offer.task_id))
        else:
            self._detach_offer(stream)
            self._set_idle(stream, self._clock.monotonic())
            self._match()

    # --- tasks -----------------------------------------------------------------------------------

    def submit(self, task: WorkerTask) -> None:
        """Adds a task at the end of its backlog."""
        task.queued_at = self._clock.monotonic()
        self._backlog[task.task_class].setdefault(task.flow_type, {})[task] = None
        self._match()

    def hand_back(self, task: WorkerTask) -> None:
        """Puts a task that nobody has run back at the front of its backlog."""
        if task.withdrawn:
            return
        task.offer = None
        waiting = self._backlog[task.task_class].get(task.flow_type, {})
        self._backlog[task.task_class][task.flow_type] = {task: None, **waiting}
        self._match()

    def withdraw(self, task: WorkerTask) -> None:
        """Takes a task back, wherever it is: waiting, offered, or running."""
        task.withdrawn = True
        waiting = self._backlog[task.task_class].get(task.flow_type)
        if waiting is not None and task in waiting:
            self._remove(task)
        if task.offer is not None:
            self.give_up(task.offer)

    def close(self) -> None:
        """Stops making offers."""
        self._closed = True
        if self._wake is not None:
            self._wake[1].cancel()
            self._wake = None

    def streams(self) -> list[WorkerStream]:
        """All open streams."""
        return [
            stream
            for worker in self._workers.values()
            for pool in worker.pools.values()
            for stream in (*pool.acknowledged, *pool.spares)
        ]

    def has_worker_for(self, flow_type: str) -> bool:
        return flow_type in self._workers_by_flow_type

    def backlog_size(self) -> int:
        return sum(len(w) for kind in self._backlog.values() for w in kind.values())

    # --- matching --------------------------------------------------------------------------------

    def _match(self) -> None:
        if self._matching or self._closed:
            return
        self._matching = True
        try:
            offers = self._collect_offers()
        finally:
            self._matching = False
        for offer in offers:
            if not offer.gave_up:
                self._hand_out(offer)

    def _collect_offers(self) -> list[Offer]:
        now = self._clock.monotonic()
        offers: list[Offer] = []
        for task_class, by_flow_type in self._backlog.items():
            for flow_type in list(by_flow_type):
                workers = self._workers_by_flow_type.get(flow_type)
                if workers is None:
                    continue
                placed: list[tuple[WorkerTask, WorkerStream]] = []
                skipped = 0
                for task in by_flow_type[flow_type]:
                    candidates = [w for w in workers if self._can_take(w, task_class, now)]
                    if not candidates:
                        break
                    stream = self._choose(task, workers, candidates, now)
                    if stream is None:
                        skipped += 1
                        if skipped > MAXIMUM_SKIPS:
                            break
                        continue
                    placed.append((task, stream))
                    self._take(stream, task, now)
                for task, stream in placed:
                    self._remove(task)
                    if stream.reserved:
                        continue
                    offer = task.offer
                    assert offer is not None
                    offers.append(offer)
        return offers

    def _can_take(self, worker: Worker, task_class: TaskClass, now: float) -> bool:
        capacity: Capacity = worker.capacity[task_class]
        if not capacity.may_offer(worker.busy, now):
            self._wake_at(capacity.probe_at)
            return False
        return bool(worker.idle)

    def _choose(
        self, task: WorkerTask, workers: dict[Worker, None], candidates: list[Worker], now: float
    ) -> WorkerStream | None:
        sticky = self._workers.get(task.sticky_worker)
        if sticky is not None and sticky in workers and sticky.knows(task):
            if sticky in candidates:
                return next(iter(sticky.idle))
            if len(workers) > 1 and now - task.queued_at < STICKY_WAIT:
                self._wake_at(task.queued_at + STICKY_WAIT)
                return None
        able = [worker for worker in candidates if worker.knows(task)]
        if not able:
            return None
        worker = min(able, key=lambda candidate: candidate.busy)
        return next(iter(worker.idle))

    def _take(self, stream: WorkerStream, task: WorkerTask, now: float) -> None:
        """Makes an offer, or reserves the stream until a single-attempt task may go out on it."""
        worker = stream.worker
        del worker.idle[stream]
        if task.single_attempt:
            needed = SETTLE if stream.pool.surplus <= 0 else SETTLE_SURPLUS
            left = stream.idle_since + needed - now
            if left > 0:
                stream.reserved = True
                self._call_later(left, lambda: self._offer_reserved(stream, task))
                return
        self._make_offer(stream, task, now)

    def _offer_reserved(self, stream: WorkerStream, task: WorkerTask) -> None:
        stream.reserved = False
        if self._closed:
            return
        now = self._clock.monotonic()
        if stream.phase is not Phase.IDLE:
            if not task.withdrawn:
                self.hand_back(task)
            return
        if task.withdrawn:
            stream.worker.idle[stream] = None
            self._match()
            return
        self._hand_out(self._make_offer(stream, task, now))

    def _make_offer(self, stream: WorkerStream, task: WorkerTask, now: float) -> Offer:
        worker = stream.worker
        pool = stream.pool
        capacity = worker.capacity[task.task_class]
        offer = Offer(
            task,
            stream,
            task_id=uuid.uuid4().hex,
            offered_at=now,
            idle_before=now - stream.idle_since,
            probe=capacity.limit is not None and worker.busy >= capacity.limit,
        )
        if offer.probe:
            # One probe at a time: the next may go when this one has been answered or time is up.
            capacity.probe_at = now + max(capacity.pause, 0.05)
        stream.phase = Phase.OFFERED
        stream.offer = offer
        task.offer = offer
        worker.busy += 1
        pool.last_busy_at = now
        self.tasks_offered += 1
        expected = self._average.get((task.flow_type, task.profile), LONG_TASK)
        # A moment for the worker to read the task: until then it would count the stream as idle.
        delay = SETTLE if expected >= LONG_TASK else LONG_TASK
        if expected >= LONG_TASK and not worker.idle:
            self._count_running_as_long(pool)
            if not offer.counted_long:
                self._count_long(offer)
        else:
            self._call_later(delay, lambda: self._still_running(offer))
        return offer

    def _still_running(self, offer: Offer) -> None:
        if offer.stream.offer is offer and not offer.counted_long:
            self._count_long(offer)
            self._match()

    def _count_running_as_long(self, pool: StreamPool) -> None:
        for stream in tuple(pool.acknowledged):
            offer = stream.offer
            if offer is None or offer.counted_long:
                continue
            task = offer.task
            if self._average.get((task.flow_type, task.profile), LONG_TASK) >= LONG_TASK:
                self._count_long(offer)

    def _count_long(self, offer: Offer) -> None:
        offer.counted_long = True
        pool = offer.stream.pool
        pool.long_running += 1
        self._acknowledge(pool)

    # --- bookkeeping -----------------------------------------------------------------------------

    def _acknowledge(self, pool: StreamPool) -> None:
        """Acknowledges spares until the pool has as many short-lived or idle streams as it should.

        A stream that is acknowledged here is idle from now on, so a single-attempt task does not
        meet it at once.
        """
        if self._closed:
            return
        now = self._clock.monotonic()
        while pool.spares and pool.surplus < 0:
            stream = next(iter(pool.spares))
            del pool.spares[stream]
            pool.acknowledged[stream] = None
            stream.phase = Phase.IDLE
            stream.idle_since = now
            stream.worker.idle[stream] = None
            stream.send(Registered())

    def _detach_offer(self, stream: WorkerStream) -> Offer | None:
        offer = stream.offer
        if offer is None:
            return None
        pool = stream.pool
        stream.offer = None
        stream.worker.busy -= 1
        pool.last_busy_at = self._clock.monotonic()
        if offer.counted_long:
            offer.counted_long = False
            pool.long_running -= 1
        if offer.task.offer is offer:
            offer.task.offer = None
        return offer

    def _set_idle(self, stream: WorkerStream, now: float) -> None:
        stream.phase = Phase.IDLE
        stream.idle_since = now
        stream.worker.idle[stream] = None

    def _remove(self, task: WorkerTask) -> None:
        by_flow_type = self._backlog[task.task_class]
        waiting = by_flow_type[task.flow_type]
        del waiting[task]
        if not waiting:
            del by_flow_type[task.flow_type]

    def _wake_at(self, due: float) -> None:
        """Matches again at `due`, unless that happens sooner anyway."""
        if self._wake is not None:
            if self._wake[0] <= due:
                return
            self._wake[1].cancel()
        delay = max(due - self._clock.monotonic(), 0.001)
        self._wake = (due, self._call_later(delay, self._woken))

    def _woken(self) -> None:
        self._wake = None
        self._match()
