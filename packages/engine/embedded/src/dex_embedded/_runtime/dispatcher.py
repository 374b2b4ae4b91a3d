"""Brings waiting tasks and idle worker streams together.

Everything here is synchronous and quick: events come in, at most one offer a stream goes out, and
no answer is awaited. RPCs go before Steps, but not for ever; within a class the oldest task goes
first; a flow stays with the worker that served it last while that worker is merely busy for a
moment.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.timer import CallLater, Timer
from dex_embedded._runtime.worker_streams import (
    CancelTask,
    Offer,
    OutgoingFrame,
    Phase,
    TaskClass,
    Worker,
    WorkerStream,
    WorkerTask,
)
from dex_embedded._runtime.worker_table import ASK_AGAIN, SETTLING_IN, WorkerTable

STICKY_WAIT: Final = 1.0
"""How long a task waits for the busy worker that served its flow last, in seconds."""
STEADY_WAIT: Final = 0.03
"""How long a single-attempt task waits for a stream that cannot be retired, in seconds."""
LONG_TASK: Final = 0.05
"""A task of a type that takes longer than this on average gets a stream of its own, in seconds."""
FRESH: Final = 0.02
"""A stream idle for less than this may decline because the worker is still tidying up."""
RPCS_PAST_STEPS: Final = 8
"""RPCs that go before a waiting Step until it has its turn: callers who poll must not stop it."""
MAXIMUM_SKIPS: Final = 64
AVERAGE_WEIGHT: Final = 0.3


class Dispatcher:
    """The matching of tasks to streams.

    Args:
        hand_out: Called with each new offer. It must end in the frame being passed to the stream
            and `frame_sent`, or in the offer being given up.
        clock: Measures idleness and task durations.
        call_later: Runs a function after a delay in seconds.

    Attributes:
        tasks_offered: Offers made so far.
        tasks_waiting: Tasks that wait for a worker.
        table: The connected workers.
    """

    def __init__(
        self, hand_out: Callable[[Offer], None], clock: Clock, call_later: CallLater
    ) -> None:
        self._hand_out = hand_out
        self._clock = clock
        self._call_later = call_later
        self.table = WorkerTable(clock)
        self._backlog: dict[TaskClass, dict[str, dict[WorkerTask, None]]] = {
            TaskClass.RPC: {},
            TaskClass.STEP: {},
        }
        self._rpcs_past_steps = 0
        self._average: dict[tuple[str, str], float] = {}
        self._wake: tuple[float, Timer] | None = None
        self._matching = False
        self._closed = False
        self._paused = False
        self.tasks_offered = 0
        self.tasks_waiting = 0

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
        stream = self.table.open_stream(worker_id, queue, flow_types, send, close)
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
        offer = self.table.close_stream(stream, retired=retired)
        self._match()
        return None if offer is None or offer.gave_up else offer

    def leave(self, stream: WorkerStream) -> None:
        """Ends a stream: at once when it is idle, else when the task it carries is answered."""
        stream.is_leaving = True
        if stream.phase in (Phase.SPARE, Phase.IDLE):
            self._set_idle(stream)

    def frame_sent(self, offer: Offer) -> None:
        """The offer's frame went out. A task that runs for long will be asked about."""
        offer.sent = True
        if offer.guarded or self._is_long(offer.task):
            self._ask_if_running(offer)
        else:
            self._call_later(LONG_TASK, lambda: self._ask_if_running(offer))

    def answered_ping(self, stream: WorkerStream) -> None:
        """The worker answered a ping."""
        if self.table.answered_ping(stream):
            self._match()

    def finished(self, stream: WorkerStream) -> Offer | None:
        """The worker sent a final frame: the stream is idle again.

        Returns:
            The offer it answers, or `None` if nothing was out or the engine had given it up.
        """
        offer = self.table.detach(stream)
        if offer is None:
            return None
        if not offer.gave_up:
            self._learn_duration(offer)
        if offer.probe:
            stream.worker.capacity[offer.task.task_class].probe_succeeded()
        self._set_idle(stream)
        self.table.acknowledge(stream.pool)
        self._match()
        return None if offer.gave_up else offer

    def declined(self, stream: WorkerStream) -> Offer | None:
        """The worker has no capacity for the offer. The caller hands its task back."""
        offer = self.table.detach(stream)
        if offer is None:
            return None
        worker = stream.worker
        if offer.idle_before >= FRESH or offer.probe:
            now = self._clock.monotonic()
            worker.capacity[offer.task.task_class].declined(worker.busy, now)
        self._set_idle(stream)
        return None if offer.gave_up else offer

    def name_unknown(self, stream: WorkerStream) -> Offer | None:
        """The worker did not register the name, so it is not asked for it again."""
        offer = self.table.detach(stream)
        if offer is None:
            return None
        task = offer.task
        stream.worker.unknown_names.add((task.flow_type, task.task_class, task.name))
        task.unknown_to.add(stream.worker.worker_id)
        self._set_idle(stream)
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
            self.table.detach(stream)
            self._set_idle(stream)
            self._match()

    # --- tasks -----------------------------------------------------------------------------------

    def submit(self, task: WorkerTask) -> None:
        """Adds a task at the end of its backlog."""
        task.queued_at = self._clock.monotonic()
        self._backlog[task.task_class].setdefault(task.flow_type, {})[task] = None
        self.tasks_waiting += 1
        self._match()

    def hand_back(self, task: WorkerTask) -> None:
        """Puts a task that nobody has run back at the front of its backlog."""
        if task.withdrawn:
            return
        task.offer = None
        waiting = self._backlog[task.task_class].get(task.flow_type, {})
        if task not in waiting:
            self.tasks_waiting += 1
        self._backlog[task.task_class][task.flow_type] = {task: None, **waiting}
        self._match()

    def withdraw(self, task: WorkerTask) -> None:
        """Takes a task back, wherever it is: waiting, offered, or running."""
        task.withdrawn = True
        if task in self._backlog[task.task_class].get(task.flow_type, ()):
            self._remove(task)
        if task.offer is not None:
            self.give_up(task.offer)

    def tasks_waiting_of(self, flow_type: str) -> int:
        """Tasks of a flow type that wait for a worker."""
        return sum(len(waiting.get(flow_type, ())) for waiting in self._backlog.values())

    def pause(self, *, paused: bool) -> None:
        """Makes no offers while paused."""
        self._paused = paused
        self._match()

    def close(self) -> None:
        """Stops making offers."""
        self._closed = True
        if self._wake is not None:
            self._wake[1].cancel()
            self._wake = None

    # --- matching --------------------------------------------------------------------------------

    def _match(self) -> None:
        if self._matching or self._closed or self._paused or not any(self._backlog.values()):
            return
        self._matching = True
        try:
            offers = [
                offer
                for task_class in self._class_order()
                for flow_type in list(self._backlog[task_class])
                for offer in self._make_offers(self._backlog[task_class][flow_type])
            ]
        finally:
            self._matching = False
        for offer in offers:
            if not offer.gave_up:
                self._hand_out(offer)

    def _class_order(self) -> tuple[TaskClass, TaskClass]:
        """RPCs first, except when they have passed waiting Steps often enough."""
        if self._rpcs_past_steps < RPCS_PAST_STEPS:
            return TaskClass.RPC, TaskClass.STEP
        return TaskClass.STEP, TaskClass.RPC

    def _make_offers(self, waiting: dict[WorkerTask, None]) -> list[Offer]:
        """Offers for the tasks of one class and flow type, as far as there are streams."""
        offers: list[Offer] = []
        skipped = 0
        for task in waiting:
            workers = self.table.serving(task.flow_type)
            able = [worker for worker in workers if self._has_capacity(worker, task.task_class)]
            if not able:
                break
            stream = self._choose(task, workers, able)
            if stream is not None:
                offers.append(self._make_offer(stream, task))
                continue
            skipped += 1
            if skipped > MAXIMUM_SKIPS:
                break
        for offer in offers:
            self._remove(offer.task)
        return offers

    def _has_capacity(self, worker: Worker, task_class: TaskClass) -> bool:
        if not any(pool.idle for pool in worker.pools.values()):
            return False
        capacity = worker.capacity[task_class]
        if capacity.may_offer(worker.busy, self._clock.monotonic()):
            return True
        self._wake_at(capacity.probe_at)
        return False

    def _choose(
        self, task: WorkerTask, workers: dict[Worker, None], able: list[Worker]
    ) -> WorkerStream | None:
        """A stream for the task now, or `None`; then a wake-up is set if waiting may help."""
        now = self._clock.monotonic()
        sticky = self.table.worker(task.sticky_worker)
        if sticky is not None and sticky in workers and sticky.knows(task):
            stream = self._stream_of(sticky, task) if sticky in able else None
            if stream is not None:
                return stream
            if now - task.queued_at < STICKY_WAIT:
                if len(workers) > 1:
                    self._wake_at(task.queued_at + STICKY_WAIT)
                return None
        for worker in sorted(able, key=lambda worker: worker.busy):
            stream = self._stream_of(worker, task) if worker.knows(task) else None
            if stream is not None:
                return stream
        return None

    def _stream_of(self, worker: Worker, task: WorkerTask) -> WorkerStream | None:
        if not task.single_attempt:
            stream = self.table.idle_stream(worker)
            settled_at = worker.born_at + SETTLING_IN
            if stream is None and self._clock.monotonic() < settled_at:
                self._wake_at(settled_at)
            return stream
        stream, look_again = self.table.steady_stream(worker)
        if stream is not None:
            return stream
        waited_at = task.queued_at + STEADY_WAIT
        if self._clock.monotonic() >= waited_at:
            stream, confirmed_at = self.table.confirmed_stream(worker)
            if stream is not None:
                return stream
            waited_at = confirmed_at
        self._wake_at(min(look_again, waited_at))
        return None

    def _make_offer(self, stream: WorkerStream, task: WorkerTask) -> Offer:
        now = self._clock.monotonic()
        worker = stream.worker
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
            # One probe at a time: the next goes when this one has been answered or time is up.
            capacity.probe_at = now + max(capacity.pause, 0.05)
        self.table.attach(stream, offer)
        if task.single_attempt:
            self.table.guard(offer)
        task.offer = offer
        self.tasks_offered += 1
        if task.task_class is TaskClass.STEP:
            self._rpcs_past_steps = 0
        elif self._backlog[TaskClass.STEP]:
            self._rpcs_past_steps += 1
        return offer

    def _ask_if_running(self, offer: Offer) -> None:
        if offer.stream.offer is offer and not offer.asked:
            offer.asked = True
            self.table.ask(offer.stream)

    def _is_long(self, task: WorkerTask) -> bool:
        return self._average.get((task.flow_type, task.profile), LONG_TASK) >= LONG_TASK

    def _learn_duration(self, offer: Offer) -> None:
        key = (offer.task.flow_type, offer.task.profile)
        took = self._clock.monotonic() - offer.offered_at
        average = self._average.get(key, took)
        self._average[key] = average + AVERAGE_WEIGHT * (took - average)

    # --- bookkeeping -----------------------------------------------------------------------------

    def _remove(self, task: WorkerTask) -> None:
        by_flow_type = self._backlog[task.task_class]
        waiting = by_flow_type[task.flow_type]
        del waiting[task]
        self.tasks_waiting -= 1
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
        if self.table.ask_silent_streams():
            self._wake_at(self._clock.monotonic() + ASK_AGAIN)
        self._match()

    def _set_idle(self, stream: WorkerStream) -> None:
        if stream.is_leaving:
            # In this order: once it is gone from the table no task can be put on it.
            self.table.close_stream(stream, retired=False)
            stream.close()
            return
        if not self.table.set_idle(stream):
            self._wake_at(self._clock.monotonic() + ASK_AGAIN)
