"""The matching of tasks to streams, without a wire and on a clock of its own."""

from __future__ import annotations

import pytest

from dex_embedded._runtime.dispatcher import Dispatcher
from dex_embedded._runtime.worker_streams import (
    CancelTask,
    Offer,
    OutgoingFrame,
    Phase,
    Ping,
    Registered,
    TaskClass,
    WorkerStream,
    WorkerTask,
)

from .fake_time import FakeTime


class Desk:
    """A dispatcher with streams that only record what is sent on them."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.offers: list[Offer] = []
        self.sent: dict[WorkerStream, list[OutgoingFrame]] = {}
        self.answered: dict[WorkerStream, int] = {}
        self.dispatcher = Dispatcher(self._hand_out, self.time, self.time.call_later)

    def _hand_out(self, offer: Offer) -> None:
        self.offers.append(offer)
        self.dispatcher.frame_sent(offer)

    def open(self, worker: str = "w", queue: str = "Flow") -> WorkerStream:
        frames: list[OutgoingFrame] = []
        stream = self.dispatcher.stream_opened(
            worker, queue, frozenset({"Flow"}), frames.append, lambda: None
        )
        self.sent[stream] = frames
        return stream

    def worker(self, name: str = "w", streams: int = 2) -> None:
        """Connects a worker that keeps so many idle streams a queue, and lets it settle in."""
        for queue in (name, "Flow"):
            for _ in range(streams):
                self.open(name, queue)
        self.time.advance(1.0)

    def task(self, name: str = "Step", **options: object) -> WorkerTask:
        task_class = TaskClass.RPC if options.pop("rpc", False) else TaskClass.STEP
        task = WorkerTask("Flow", name, name, task_class, object(), **options)  # pyright: ignore[reportArgumentType]  # as the test says
        self.dispatcher.submit(task)
        return task

    def teach(self, name: str, seconds: float) -> None:
        """Lets one task of a name take so long, so that its kind is known."""
        self.task(name)
        self.time.advance(seconds)
        self.finish()

    def finish(self) -> None:
        """The worker answers the newest offer."""
        assert self.dispatcher.finished(self.offers[-1].stream) is not None

    def answer_pings(self) -> None:
        """The worker reads all its streams, and answers the pings it finds."""
        for stream, frames in list(self.sent.items()):
            for _ in range(frames.count(Ping()) - self.answered.get(stream, 0)):
                self.answered[stream] = self.answered.get(stream, 0) + 1
                self.dispatcher.answered_ping(stream)

    def acknowledged(self) -> int:
        return sum(Registered() in frames for frames in self.sent.values())


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_task_waits_until_a_worker_connects(desk: Desk) -> None:
    task = desk.task()
    assert desk.offers == []
    desk.worker()
    assert [offer.task for offer in desk.offers] == [task]


def test_short_tasks_in_a_row_acknowledge_no_further_stream(desk: Desk) -> None:
    desk.worker(streams=2)
    desk.teach("Short", 0.001)
    before = desk.acknowledged()
    for _ in range(50):
        desk.task("Short")
        desk.open()
        desk.time.advance(0.001)
        desk.finish()
    assert before == desk.acknowledged() == 4


def test_long_tasks_get_spare_streams_and_do_not_wait_for_each_other(desk: Desk) -> None:
    desk.worker(streams=1)
    desk.teach("Long", 1.0)
    for _ in range(5):
        desk.task("Long")
        desk.open()
        desk.answer_pings()
        desk.answer_pings()
    assert sum(offer.stream.offer is offer for offer in desk.offers) == 5


def test_rpcs_go_before_steps(desk: Desk) -> None:
    desk.task("Step")
    call = desk.task("Rpc", rpc=True)
    desk.worker(streams=1)
    assert desk.offers[0].task is call


def test_callers_who_never_stop_do_not_keep_a_step_from_its_turn(desk: Desk) -> None:
    desk.worker(streams=1)
    desk.teach("Rpc", 0.001)
    for _ in range(4):
        desk.task("Rpc", rpc=True)
    step = desk.task("Step")
    for _ in range(40):
        desk.task("Rpc", rpc=True)
        desk.time.advance(0.001)
        desk.finish()
        if any(offer.task is step for offer in desk.offers):
            break
    else:
        pytest.fail("forty RPCs went past the waiting Step")


def test_a_declined_step_is_not_offered_again_at_once_but_an_rpc_is(desk: Desk) -> None:
    desk.worker(streams=3)
    step = desk.task("Step")
    assert desk.dispatcher.declined(desk.offers[-1].stream) is not None
    desk.dispatcher.hand_back(step)
    assert len(desk.offers) == 1
    call = desk.task("Rpc", rpc=True)
    assert desk.offers[-1].task is call
    desk.time.advance(0.2)
    assert desk.offers[-1].task is step


def test_a_freed_slot_ends_the_pause_after_a_decline(desk: Desk) -> None:
    desk.worker(streams=3)
    running = desk.task("Long")
    waiting = desk.task("Step")
    declined = desk.offers[-1]
    assert declined.task is waiting
    desk.dispatcher.declined(declined.stream)
    desk.dispatcher.hand_back(waiting)
    assert desk.offers[-1] is declined
    first = desk.offers[0]
    assert first.task is running
    desk.dispatcher.finished(first.stream)
    assert desk.offers[-1].task is waiting


def test_a_worker_that_does_not_know_a_name_is_not_asked_for_it_again(desk: Desk) -> None:
    desk.worker("old")
    task = desk.task("New")
    desk.dispatcher.name_unknown(desk.offers[-1].stream)
    desk.dispatcher.hand_back(task)
    desk.time.advance(60)
    assert len(desk.offers) == 1
    desk.worker("new")
    assert desk.offers[-1].task is task
    assert desk.offers[-1].stream.worker.worker_id == "new"


def test_a_flow_stays_with_its_worker_while_that_is_busy_for_a_moment(desk: Desk) -> None:
    desk.worker("a", streams=1)
    desk.worker("b", streams=1)
    busy = [desk.task(sticky_worker="a") for _ in range(1)]
    assert {offer.stream.worker.worker_id for offer in desk.offers} == {"a"}
    task = desk.task(sticky_worker="a")
    assert task.offer is None or task.offer.stream.worker.worker_id == "a"
    desk.time.advance(1.1)
    assert task.offer is not None
    assert busy[0].offer is not None


def test_a_flow_whose_worker_is_gone_goes_to_another(desk: Desk) -> None:
    desk.worker("b")
    task = desk.task(sticky_worker="gone")
    assert task.offer is not None


def test_a_single_attempt_goes_out_only_on_a_stream_that_cannot_be_retired(desk: Desk) -> None:
    desk.worker(streams=2)
    task = desk.task(single_attempt=True)
    assert task.offer is not None
    stream = task.offer.stream
    assert stream.queue == "w"
    assert desk.time.now - stream.idle_since >= 0.01
    assert len(stream.pool.acknowledged) <= stream.worker.kept_idle


def test_a_single_attempt_does_not_go_out_on_a_stream_in_the_instant_it_is_free(
    desk: Desk,
) -> None:
    desk.worker(streams=1)
    first = desk.task(single_attempt=True)
    second = desk.task(single_attempt=True)
    assert first.offer is not None
    assert second.offer is None
    desk.finish()
    assert second.offer is None
    desk.time.advance(0.02)
    assert second.offer is not None


def test_a_single_attempt_goes_out_elsewhere_only_after_the_worker_answered_a_ping(
    desk: Desk,
) -> None:
    desk.worker(streams=1)
    first = desk.task(single_attempt=True)
    second = desk.task(single_attempt=True)
    assert first.offer is not None
    desk.time.advance(1.0)
    assert second.offer is None
    pinged = [stream for stream, frames in desk.sent.items() if Ping() in frames]
    desk.answer_pings()
    assert second.offer is not None
    assert second.offer.stream in pinged


def test_the_steady_pool_never_acknowledges_more_than_the_worker_keeps(desk: Desk) -> None:
    desk.worker(streams=2)
    desk.teach("Long", 1.0)
    for _ in range(6):
        desk.task("Long", single_attempt=True)
        desk.open(queue="w")
        desk.time.advance(3.0)
    steady = next(s.pool for s in desk.dispatcher.table.streams() if s.queue == "w")
    assert len(steady.acknowledged) == 2


def test_nothing_is_acknowledged_until_the_worker_has_read_a_single_attempt(desk: Desk) -> None:
    desk.worker(streams=1)
    desk.teach("Long", 1.0)
    desk.answer_pings()
    desk.task("Long", single_attempt=True)
    second = desk.task("Long", single_attempt=True)
    desk.time.advance(1.0)
    desk.open()
    before = desk.acknowledged()
    desk.dispatcher.answered_ping(
        next(s for s in desk.dispatcher.table.streams() if s.queue == "Flow" and s.asked_at > 0)
    )
    assert second.offer is not None
    assert second.offer.stream.queue == "Flow"
    assert desk.acknowledged() == before
    desk.answer_pings()
    assert desk.acknowledged() == before + 1


def test_a_withdrawn_task_is_cancelled_at_its_worker_and_its_answer_dropped(desk: Desk) -> None:
    desk.worker()
    task = desk.task()
    offer = desk.offers[-1]
    desk.dispatcher.withdraw(task)
    assert CancelTask(offer.task_id) in desk.sent[offer.stream]
    assert offer.stream.phase is Phase.ABANDONED
    assert desk.dispatcher.finished(offer.stream) is None
    assert offer.stream.phase is Phase.IDLE


def test_each_offer_has_a_task_id_of_its_own(desk: Desk) -> None:
    desk.worker()
    task = desk.task()
    first = desk.offers[-1]
    assert desk.dispatcher.stream_closed(first.stream, retired=True) is first
    desk.dispatcher.hand_back(task)
    assert desk.offers[-1].task is task
    assert desk.offers[-1].task_id != first.task_id


def test_a_worker_without_streams_is_forgotten(desk: Desk) -> None:
    stream = desk.open()
    desk.dispatcher.stream_closed(stream, retired=False)
    assert desk.dispatcher.table.worker("w") is None
    assert not desk.dispatcher.table.serving("Flow")
