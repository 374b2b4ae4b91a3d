"""The engine: everything of the runtime put together, from start to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final

from dex_embedded._kernel.inputs import Wake
from dex_embedded._kernel.transition import (
    Command,
    DispatchStep,
    Limits,
    Moment,
    Transition,
    WithdrawRpc,
    WithdrawStep,
)
from dex_embedded._runtime.bounds import DEFAULT_BOUNDS, Admission, Bounds, TaskRoom
from dex_embedded._runtime.call_errors import CallError, CallErrorKind
from dex_embedded._runtime.clock import Clock, SystemClock
from dex_embedded._runtime.codec import Codec
from dex_embedded._runtime.dispatcher import Dispatcher
from dex_embedded._runtime.failure_text import describe_failure
from dex_embedded._runtime.faults import Faults
from dex_embedded._runtime.flow_calls import FlowCalls
from dex_embedded._runtime.resident_runs import ResidentRun, RunTable
from dex_embedded._runtime.rpc_work import RpcWork
from dex_embedded._runtime.step_work import StepAttempt, StepWork
from dex_embedded._runtime.stream_log import StreamLog
from dex_embedded._runtime.timer import Timer
from dex_embedded._runtime.waiters import Waiters
from dex_embedded._runtime.wake_ups import WakeUps
from dex_embedded._runtime.worker_calls import WorkerCalls
from dex_embedded._runtime.worker_streams import Offer
from dex_embedded._store.protocol import Store
from dex_embedded._store.sqlite import Synchronous, open_store

_LOGGER = logging.getLogger(__name__)

DATA_FILE: Final = "dex.sqlite3"
DRAIN_SECONDS: Final = 3.0
"""How long a stopping engine waits for the tasks that are running."""
_RECOVER_AT_ONCE: Final = 50
_SWEEP_EVERY: Final = 5.0


class Engine:
    """Serves flows from one data file.

    Create it with `Engine.open`, then call `start`; in the end `stop`.

    Attributes:
        workers: What worker streams report.
        flows: What clients ask.
        rpcs: InvokeRPC.
        streams: Stream reads and writes.
        faults: Kill points for tests.
        bounds: What it holds in memory at most.
        admission: Who is let in.
    """

    def __init__(
        self,
        store: Store,
        codec: Codec,
        clock: Clock,
        faults: Faults,
        limits: Limits,
        bounds: Bounds,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._clock = clock
        self._store = store
        self._limits = limits
        self.faults = faults
        self.bounds = bounds
        self.admission = Admission(bounds)
        self._waiters = Waiters()
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[BaseException] = loop.create_future()

        def call_later(delay: float, function: Callable[[], None]) -> Timer:
            return loop.call_later(delay, function)

        self._runs = RunTable(
            store,
            moment=self._moment,
            monotonic=clock.monotonic,
            call_later=call_later,
            faults=faults,
            carry_out=self._carry_out,
            decided=self._decided,
            made_durable=self._made_durable,
        )
        self._dispatcher = Dispatcher(self._hand_out, clock, call_later)
        faults.tasks_out = lambda: self._dispatcher.table.tasks_out
        self._steps = StepWork(self._runs, self._dispatcher, codec, clock, call_later)
        room = TaskRoom(
            bounds, self._dispatcher.tasks_waiting_of, lambda: self._dispatcher.tasks_waiting
        )
        self.rpcs = RpcWork(self._runs, store, self._dispatcher, codec, clock, call_later, room)
        self.streams = StreamLog(store, self._waiters, clock, faults)
        self.workers = WorkerCalls(self._dispatcher, self._steps, self.rpcs, self.streams, clock)
        self.flows = FlowCalls(self._runs, store, self._waiters, self._moment, clock, room)
        self._wake_ups = WakeUps(clock, call_later, self._due_before, self._wake)

    @classmethod
    def open(
        cls,
        folder: Path,
        codec: Codec,
        *,
        synchronous: Synchronous = "FULL",
        clock: Clock | None = None,
        faults: Faults | None = None,
        limits: Limits | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> Engine:
        """Opens the data file in `folder`, creating both if need be.

        Raises:
            StoreUnusableError: The data file cannot be used; nothing was written.
            OSError: The folder cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(f"cannot make data folder {folder}: {error.strerror}") from error
        engine: list[Engine] = []
        faults = faults or Faults.from_environment()
        store = open_store(
            folder / DATA_FILE,
            encode_event=codec.encode_event,
            on_failure=lambda error: engine[0]._store_failed(error),
            synchronous=synchronous,
            reach=faults.reach,
        )
        engine.append(
            cls(
                store,
                codec,
                clock or SystemClock(),
                faults,
                limits or _limits_from_environment(),
                bounds,
            )
        )
        return engine[0]

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes up every run that was going on: lost attempts, due timers, waiting work."""
        self._runs.set_unrecovered(self._store.runs_to_recover())
        self._start_task(self._recover())
        self._wake_ups.start()
        self._start_task(self._sweep())

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Stops handing out work, gives running tasks a moment, and closes the store.

        Long polls end at once with a retryable error. Attempts that are still running count as
        lost when the engine starts again.
        """
        self._wake_ups.close()
        self._waiters.stop()
        self._dispatcher.close()
        self.workers.ask_to_reconnect("the engine is stopping")
        await self.workers.drained(drain_seconds)
        stopping = CallError(CallErrorKind.STOPPING, "the engine is stopping")
        self.rpcs.stop(stopping)
        self.workers.close_streams()
        self._runs.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Makes what was staged durable and lets go of the data file. Comes after `stop`."""
        await self._store.close()

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._store_failed(error)

    async def _recover(self) -> None:
        more = True
        while more:
            more = self._runs.recover_some(_RECOVER_AT_ONCE)
            # Calls that arrive meanwhile get their turn; a run they ask for is recovered first.
            await asyncio.sleep(0)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            self._runs.evict_idle()
            self.workers.check_idle_streams()
            self._watch_log()

    def _watch_log(self) -> None:
        """Takes no new work while a reader keeps the log from being cut and it is too long."""
        is_full = self._store.log_bytes > self.bounds.log_bytes
        if is_full:
            self._store.cut_log()
        if is_full != self.admission.log_is_full:
            _LOGGER.warning(
                "the log of the data file is %s",
                "too long and a reader keeps it from being cut: new work is refused"
                if is_full
                else "short again: new work is taken",
            )
            self.admission.log_is_full = is_full
            self._dispatcher.pause(paused=is_full)

    def _store_failed(self, error: BaseException) -> None:
        """Memory is ahead of the disk, or the engine is broken: it must not answer any more."""
        _LOGGER.critical("the engine has failed and stops: %s", describe_failure(error))
        if not self.failed.done():
            self.failed.set_result(error)

    # --- what a decision causes ------------------------------------------------------------------

    def _decided(self, resident: ResidentRun, transition: Transition) -> None:
        self._wake_ups.set(resident.run.key, transition.wake_at)

    def _carry_out(self, resident: ResidentRun, command: Command) -> None:
        match command:
            case DispatchStep():
                self._steps.dispatch(resident, command)
            case WithdrawStep(ref=ref):
                self._steps.withdraw(resident, ref)
            case WithdrawRpc(call_id=call_id):
                self.rpcs.withdrawn(call_id)

    def _made_durable(self, resident: ResidentRun, transition: Transition) -> None:
        if transition.changes:
            self._waiters.notify(resident.run.key)

    def _hand_out(self, offer: Offer) -> None:
        if isinstance(offer.task.reference, StepAttempt):
            self._steps.hand_out(offer)
        else:
            self.rpcs.hand_out(offer)

    # --- time ------------------------------------------------------------------------------------

    def _due_before(self, before: float, limit: int) -> list[tuple[float, int]]:
        return [(due, summary.key) for due, summary in self._store.wakes(before, limit)]

    def _wake(self, run_key: int) -> None:
        resident = self._runs.load(run_key)
        if resident.run.is_active:
            self._runs.apply(resident, Wake(), subject="wake")

    def _moment(self) -> Moment:
        return Moment(
            now=self._clock.wall(),
            new_id=new_id,
            new_run_key=self._store.new_run_key,
            limits=self._limits,
        )


def _limits_from_environment() -> Limits:
    """Tests of heartbeats would take long if they kept to the smallest timeout."""
    smallest = os.environ.get("DEX_EMBEDDED_MINIMUM_HEARTBEAT", "")
    return Limits(minimum_heartbeat_timeout=int(smallest)) if smallest.isdigit() else Limits()


def new_id() -> str:
    """A unique id that sorts by time: UUID version 7."""
    milliseconds = time.time_ns() // 1_000_000
    raw = bytearray(milliseconds.to_bytes(6, "big") + os.urandom(10))
    raw[6] = 0x70 | (raw[6] & 0x0F)
    raw[8] = 0x80 | (raw[8] & 0x3F)
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
