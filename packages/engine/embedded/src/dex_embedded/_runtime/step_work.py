"""Attempts of Steps on their way to workers and back."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dex_embedded._kernel.errors import StaleInputError
from dex_embedded._kernel.inputs import (
    ExecuteSucceeded,
    HeartbeatReceived,
    Input,
    MethodFailed,
    TaskDropped,
    TaskHandedOut,
    TaskReturned,
    WaitForSucceeded,
)
from dex_embedded._kernel.state import InvocationRef
from dex_embedded._kernel.transition import DispatchStep, HandOut
from dex_embedded._kernel.values import (
    ExecuteResult,
    Failure,
    FailureKind,
    Routing,
    RoutingSource,
    WaitForResult,
)
from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.codec import Codec
from dex_embedded._runtime.dispatcher import Dispatcher
from dex_embedded._runtime.faults import HAND_OUT
from dex_embedded._runtime.frame_size import FrameTooLargeError
from dex_embedded._runtime.log_fields import Names, about
from dex_embedded._runtime.resident_runs import ResidentRun, RunTable
from dex_embedded._runtime.timer import CallLater, Timer
from dex_embedded._runtime.worker_streams import Offer, TaskClass, TaskFrame, WorkerTask

_LOGGER = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class StepAttempt:
    """What a worker task for a Step refers to."""

    resident: ResidentRun
    ref: InvocationRef
    step_type: str
    had_progress: bool = False
    heartbeat_timeout: float = 0.0
    last_beat: float = 0.0
    limit: Timer | None = None
    """The timer of the attempt: its end, or the end of the silence it may keep."""

    @property
    def names(self) -> dict[str, Names]:
        """What a log record about it is about."""
        run = self.resident.run
        step = self.ref.step_execution_id
        return about(flow_id=run.flow_id, flow_type=run.flow_type, step=step)

    def stop_timer(self) -> None:
        if self.limit is not None:
            self.limit.cancel()
            self.limit = None


class StepWork:
    """Hands attempts out and feeds what comes back to the kernel."""

    def __init__(
        self,
        runs: RunTable,
        dispatcher: Dispatcher,
        codec: Codec,
        clock: Clock,
        call_later: CallLater,
    ) -> None:
        self._runs = runs
        self._dispatcher = dispatcher
        self._codec = codec
        self._clock = clock
        self._call_later = call_later

    # --- to the worker ---------------------------------------------------------------------------

    def dispatch(self, resident: ResidentRun, command: DispatchStep) -> None:
        """An attempt is ready: queue it. It may be the same attempt again, after a reject."""
        known = resident.tasks.get(command.ref)
        if known is not None and not known.withdrawn:
            self._dispatcher.hand_back(known)
            return
        step_type = command.step_type
        task = WorkerTask(
            flow_type=resident.run.flow_type,
            name=step_type,
            profile=f"{step_type}.{command.ref.method.name}",
            task_class=TaskClass.STEP,
            reference=StepAttempt(resident, command.ref, step_type),
            single_attempt=command.single_attempt,
            sticky_worker=resident.run.sticky_worker,
        )
        resident.tasks[command.ref] = task
        self._dispatcher.submit(task)

    def withdraw(self, resident: ResidentRun, ref: InvocationRef) -> None:
        """The attempt is over for the engine, wherever it is."""
        task = resident.tasks.pop(ref, None)
        if task is not None:
            _attempt_of(task).stop_timer()
            self._dispatcher.withdraw(task)

    def hand_out(self, offer: Offer) -> None:
        """Sends an offered attempt once what it rests on is durable."""
        attempt = _attempt_of(offer.task)
        stream = offer.stream
        worker_id = stream.worker.worker_id
        is_sticky = stream.queue == worker_id
        routing = Routing(
            served_by=worker_id,
            source=RoutingSource.STICKY_QUEUE if is_sticky else RoutingSource.FLOW_TYPE_QUEUE,
            sticky_worker=attempt.resident.run.sticky_worker,
        )
        try:
            transition = self._runs.apply(
                attempt.resident,
                TaskHandedOut(ref=attempt.ref, routing=routing),
                place=HAND_OUT,
                subject=attempt.step_type,
            )
        except StaleInputError:
            self._forget(attempt)
            self._dispatcher.withdraw(offer.task)
            return
        work = transition.outcome
        assert isinstance(work, HandOut)
        try:
            payload = self._codec.encode_step_task(offer.task_id, work)
        except FrameTooLargeError as error:
            self._forget(attempt)
            self._dispatcher.withdraw(offer.task)
            _LOGGER.warning(
                "%s of flow %s: %s", attempt.ref, work.flow_id, error, extra=attempt.names
            )
            failure = Failure(kind=FailureKind.TOO_LARGE, detail=str(error))
            self._feed(attempt, MethodFailed(ref=attempt.ref, failure=failure))
            return
        # The snapshot may show writes of others, so even an attempt whose own mark is in no hurry
        # waits for what came before it: a crash must not undo what a handler has acted on.
        ticket = attempt.resident.ticket
        if ticket is None:
            self._send(offer, attempt, work, payload)
        else:
            ticket.add_callback(lambda: self._send(offer, attempt, work, payload))

    def _send(self, offer: Offer, attempt: StepAttempt, work: HandOut, payload: bytes) -> None:
        if offer.gave_up or offer.task.withdrawn or offer.stream.offer is not offer:
            # Withdrawn, or the stream ended while the mark became durable; `returned` saw to it.
            return
        offer.stream.send(TaskFrame(payload, attempt.step_type))
        self._dispatcher.frame_sent(offer)
        now = self._clock.monotonic()
        attempt.last_beat = now
        attempt.heartbeat_timeout = float(work.heartbeat_timeout)
        ends_at = now + max(work.deadline - self._clock.wall(), 0.0)
        self._watch(attempt, ends_at)

    # --- limits ----------------------------------------------------------------------------------

    def _watch(self, attempt: StepAttempt, ends_at: float) -> None:
        now = self._clock.monotonic()
        due = min(ends_at, attempt.last_beat + attempt.heartbeat_timeout)
        attempt.limit = self._call_later(max(due - now, 0.0), lambda: self._check(attempt, ends_at))

    def _check(self, attempt: StepAttempt, ends_at: float) -> None:
        attempt.limit = None
        now = self._clock.monotonic()
        name = f"{attempt.ref.method.name.lower()} of {attempt.ref.step_execution_id}"
        if now >= ends_at:
            failure = Failure(kind=FailureKind.TIMEOUT, detail=f"timeout: {name} took too long")
        elif now >= attempt.last_beat + attempt.heartbeat_timeout:
            silence = attempt.heartbeat_timeout
            failure = Failure(
                kind=FailureKind.HEARTBEAT_TIMEOUT,
                detail=f"heartbeat timeout: {name} was silent for {silence:g} seconds;"
                " heartbeat more often or raise its heartbeat_timeout",
            )
        else:
            self._watch(attempt, ends_at)
            return
        flow_id = attempt.resident.run.flow_id
        _LOGGER.warning("flow %s: %s", flow_id, failure.detail, extra=attempt.names)
        self._feed(attempt, MethodFailed(ref=attempt.ref, failure=failure))

    # --- from the worker -------------------------------------------------------------------------

    def heartbeat(self, offer: Offer, value: bytes | None) -> None:
        attempt = _attempt_of(offer.task)
        self.beat(offer)
        self._feed(attempt, HeartbeatReceived(ref=attempt.ref, value=value))

    def beat(self, offer: Offer) -> None:
        """The handler gave a sign of life."""
        attempt = _attempt_of(offer.task)
        attempt.had_progress = True
        attempt.last_beat = self._clock.monotonic()

    def wait_for_finished(self, offer: Offer, result: WaitForResult) -> None:
        attempt = self._finish(offer)
        if attempt is not None:
            self._feed(attempt, WaitForSucceeded(ref=attempt.ref, result=result))

    def execute_finished(self, offer: Offer, result: ExecuteResult) -> None:
        attempt = self._finish(offer)
        if attempt is not None:
            self._feed(attempt, ExecuteSucceeded(ref=attempt.ref, result=result))

    def failed(self, offer: Offer, failure: Failure) -> None:
        attempt = self._finish(offer)
        if attempt is not None:
            self._feed(attempt, MethodFailed(ref=attempt.ref, failure=failure))

    def returned(self, offer: Offer) -> None:
        """The attempt was not run, and that is certain: a reject, or the frame was never sent."""
        attempt = _attempt_of(offer.task)
        attempt.stop_timer()
        if not self._feed(attempt, TaskReturned(ref=attempt.ref)):
            self._forget(attempt)

    def dropped(self, offer: Offer) -> None:
        """The stream was half-closed without an answer."""
        attempt = _attempt_of(offer.task)
        self._forget(attempt)
        _LOGGER.info("%s got no answer from a retiring stream", attempt.ref, extra=attempt.names)
        self._feed(attempt, TaskDropped(ref=attempt.ref, had_progress=attempt.had_progress))

    def lost(self, offer: Offer) -> None:
        """The worker, or the connection to it, is gone."""
        attempt = _attempt_of(offer.task)
        self._forget(attempt)
        failure = Failure(
            kind=FailureKind.WORKER_LOST,
            detail=f"the connection to worker {offer.stream.worker.worker_id} was lost",
        )
        self._feed(attempt, MethodFailed(ref=attempt.ref, failure=failure))

    def _finish(self, offer: Offer) -> StepAttempt | None:
        if self._dispatcher.finished(offer.stream) is None:
            return None
        attempt = _attempt_of(offer.task)
        self._forget(attempt)
        return attempt

    def _forget(self, attempt: StepAttempt) -> None:
        attempt.stop_timer()
        attempt.resident.tasks.pop(attempt.ref, None)

    def _feed(self, attempt: StepAttempt, message: Input) -> bool:
        try:
            self._runs.apply(attempt.resident, message, subject=attempt.step_type)
        except StaleInputError:
            _LOGGER.debug("%s is over; dropped %s", attempt.ref, type(message).__name__)
            return False
        return True


def _attempt_of(task: WorkerTask) -> StepAttempt:
    attempt = task.reference
    assert isinstance(attempt, StepAttempt)
    return attempt
