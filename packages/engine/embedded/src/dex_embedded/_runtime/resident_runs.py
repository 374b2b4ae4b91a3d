"""The runs that are in memory, and the one door through which a run changes.

`RunTable.apply` decides an input on a run, stages the rows, and carries the commands out once they
are durable. Decisions on one run are serial because each is a plain call on the loop; what they
cause becomes visible in the order of their commits.

A run is loaded when something concerns it and evicted when it has been idle for a while.

The mark that an attempt was handed out is not written at once when the attempt may be repeated: a
crash would only offer the same attempt again, and most attempts end before the mark would be of any
use. It is written when the attempt has lasted for a moment. An attempt that takes the engine with
it before that is not counted, but only once: after a restart what was ready or out is marked first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dex_embedded._kernel.decide import decide
from dex_embedded._kernel.inputs import Input, Recover
from dex_embedded._kernel.state import FlowRun, InvocationRef, Phase, StepExecution
from dex_embedded._kernel.transition import Command, HandOut, Moment, PutStep, Transition
from dex_embedded._runtime.faults import AFTER, BEFORE, COMMIT, Faults
from dex_embedded._runtime.timer import CallLater, Timer
from dex_embedded._runtime.worker_streams import WorkerTask
from dex_embedded._store.errors import StoreFailedError
from dex_embedded._store.protocol import RunSummary, Store, Ticket

IDLE_SECONDS: Final = 30.0
MAXIMUM_IDLE: Final = 2_000
"""Idle runs kept in memory although nothing happens to them."""
MARK_AFTER: Final = 0.02
"""How long an attempt that may be repeated lasts before its hand-out is written, in seconds."""


@dataclass(eq=False, slots=True)
class ResidentRun:
    """A run in memory, with what the runtime keeps beside its state."""

    run: FlowRun
    ticket: Ticket | None = None
    """The newest staged work; None if everything was durable when the run was loaded."""
    tasks: dict[InvocationRef, WorkerTask] = field(default_factory=dict[InvocationRef, WorkerTask])
    last_used: float = 0.0
    pins: int = 0
    """Calls in progress that hold on to this object."""

    @property
    def is_durable(self) -> bool:
        return self.ticket is None or self.ticket.is_durable

    @property
    def may_leave(self) -> bool:
        return (
            not self.pins
            and self.is_durable
            and not self.tasks
            and (self.run.is_idle or not self.run.is_active)
        )


class _Unmarked(NamedTuple):
    handed_out_at: float
    run: FlowRun
    step: StepExecution


def _mark(run: FlowRun, step: StepExecution) -> Iterator[Transition]:
    """What writes the hand-out of a step's attempt, if it is still in a worker's hands."""
    if run.steps.get(step.id) is step and step.phase is Phase.HANDED_OUT:
        yield Transition(run=run, changes=[PutStep(step, False, False)])


class RunTable:
    """Finds, loads, changes and evicts runs.

    Args:
        store: Where runs live.
        moment: Reads the clock and makes ids, anew for each decision.
        monotonic: For idle times.
        call_later: Runs a function after a delay in seconds.
        faults: Kill points around each commit.
        carry_out: Called with each command, in order, once its transition is durable.
        decided: Called with each transition at once, while it is not durable yet.
        made_durable: Called with each transition once it is, after its commands.
    """

    def __init__(
        self,
        store: Store,
        *,
        moment: Callable[[], Moment],
        monotonic: Callable[[], float],
        call_later: CallLater,
        faults: Faults,
        carry_out: Callable[[ResidentRun, Command], None],
        decided: Callable[[ResidentRun, Transition], None],
        made_durable: Callable[[ResidentRun, Transition], None],
    ) -> None:
        self._store = store
        self._moment = moment
        self._monotonic = monotonic
        self._call_later = call_later
        self._faults = faults
        self._carry_out = carry_out
        self._decided = decided
        self._made_durable = made_durable
        self._by_key: OrderedDict[int, ResidentRun] = OrderedDict()
        self._by_run: dict[tuple[str, str], ResidentRun] = {}
        self._latest: dict[str, ResidentRun] = {}
        self._unrecovered: dict[int, RunSummary] = {}
        self._unmarked: dict[tuple[int, str], _Unmarked] = {}
        """Attempts in a worker's hands that the store may not know of, the oldest first."""
        self._mark_timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._by_key)

    # --- finding ---------------------------------------------------------------------------------

    def find(self, flow_id: str, run_id: str = "") -> ResidentRun | None:
        """The run, loaded; with an empty run id the current or latest one of the flow."""
        resident = self._by_run.get((flow_id, run_id)) if run_id else self._latest.get(flow_id)
        if resident is None:
            summary = self._store.summary(flow_id, run_id)
            if summary is None:
                return None
            resident = self.load(summary.key, is_latest=not run_id)
        self._touch(resident)
        return resident

    def resident_latest(self, flow_id: str) -> ResidentRun | None:
        """The latest run of a flow if it is in memory; it may not be durable yet."""
        return self._latest.get(flow_id)

    def load(self, run_key: int, *, is_latest: bool = False) -> ResidentRun:
        """The run with this key, from memory or from the store."""
        resident = self._by_key.get(run_key)
        if resident is None:
            resident = self.add(self._store.load(run_key), is_latest=is_latest)
            if self._unrecovered.pop(run_key, None) is not None:
                self.apply(resident, Recover(), subject="recover")
        elif is_latest:
            self._latest[resident.run.flow_id] = resident
        return resident

    def add(self, run: FlowRun, *, is_latest: bool) -> ResidentRun:
        """Takes a run into memory."""
        resident = ResidentRun(run, last_used=self._monotonic())
        self._by_key[run.key] = resident
        self._by_run[run.flow_id, run.run_id] = resident
        if is_latest or run.is_active:
            # An active run is always the latest of its flow.
            self._latest[run.flow_id] = resident
        return resident

    # --- changing --------------------------------------------------------------------------------

    def apply(
        self,
        resident: ResidentRun,
        message: Input,
        *,
        subject: str = "",
        place: str = COMMIT,
    ) -> Transition:
        """Decides `message` on the run and stages what follows.

        Args:
            resident: The run.
            message: What happened.
            subject: The Step type or RPC name, for fault places.
            place: The fault place of this commit.

        Raises:
            KernelError: The input is refused; nothing changed.
        """
        transition = decide(resident.run, message, self._moment())
        self.stage([(resident, transition)], subject=subject, place=place)
        return transition

    def stage(
        self,
        decisions: list[tuple[ResidentRun, Transition]],
        *,
        subject: str = "",
        place: str = COMMIT,
    ) -> None:
        """Stages decisions that must become durable together."""
        to_store = [transition for _, transition in decisions if transition.changes]
        changes_rows = bool(to_store)
        ticket: Ticket | None = None
        if changes_rows:
            self._faults.reach(place + BEFORE, subject)
            to_store = [each for each in to_store if not self._puts_mark_off(each)]
        if to_store:
            ticket = self._store.stage(*to_store)
        for resident, transition in decisions:
            self._touch(resident)
            if ticket is not None:
                resident.ticket = ticket
            self._decided(resident, transition)

        def carry_out_all() -> None:
            if changes_rows:
                self._faults.reach(place + AFTER, subject)
            for resident, transition in decisions:
                for command in transition.commands:
                    self._carry_out(resident, command)
                self._made_durable(resident, transition)

        # A decision without rows of its own still rests on the rows of those before it.
        waits_for = ticket if ticket is not None else decisions[-1][0].ticket
        if waits_for is None or waits_for.is_durable:
            carry_out_all()
        else:
            waits_for.add_callback(carry_out_all)

    def _puts_mark_off(self, transition: Transition) -> bool:
        """Takes note of a hand-out that need not be written now. False if it must be."""
        if not isinstance(transition.outcome, HandOut) or transition.outcome.durable_first:
            return False
        match transition.changes:
            case [PutStep(step)]:
                key = transition.run.key, step.id
                self._unmarked.pop(key, None)
                self._unmarked[key] = _Unmarked(self._monotonic(), transition.run, step)
                if self._mark_timer is None:
                    self._mark_timer = self._call_later(MARK_AFTER, self._write_marks)
                return True
            case _:
                return False

    def _write_marks(self) -> None:
        """Writes the hand-outs of attempts that have lasted for a moment."""
        self._mark_timer = None
        now = self._monotonic()
        lasting: list[Transition] = []
        for key, (handed_out, run, step) in list(self._unmarked.items()):
            if handed_out + MARK_AFTER > now:
                delay = handed_out + MARK_AFTER - now
                self._mark_timer = self._call_later(delay, self._write_marks)
                break
            del self._unmarked[key]
            lasting.extend(_mark(run, step))
        self._stage_marks(lasting)

    def stop(self) -> None:
        """Writes all hand-outs that have not been written: those attempts count as lost."""
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        lasting = [mark for _, run, step in self._unmarked.values() for mark in _mark(run, step)]
        self._unmarked.clear()
        self._stage_marks(lasting)

    def _stage_marks(self, marks: list[Transition]) -> None:
        if marks:
            with suppress(StoreFailedError):  # then the engine is stopping anyway
                self._store.stage(*marks, hurried=False)

    # --- recovery and eviction -------------------------------------------------------------------

    def set_unrecovered(self, runs: list[RunSummary]) -> None:
        """These runs need `Recover` before anything else happens to them."""
        self._unrecovered = {summary.key: summary for summary in runs}

    def recover_some(self, count: int) -> bool:
        """Recovers up to `count` runs; False when none are left."""
        for _ in range(count):
            if not self._unrecovered:
                return False
            self.load(next(iter(self._unrecovered)))
        return bool(self._unrecovered)

    def evict_idle(self) -> int:
        """Lets go of runs that have been idle for long, or are too many. Returns how many left."""
        now = self._monotonic()
        evicted = 0
        excess = len(self._by_key) - MAXIMUM_IDLE
        for resident in list(self._by_key.values()):
            if evicted >= excess and now - resident.last_used < IDLE_SECONDS:
                break
            if resident.may_leave:
                self._forget(resident)
                evicted += 1
        return evicted

    def _forget(self, resident: ResidentRun) -> None:
        run = resident.run
        del self._by_key[run.key]
        self._by_run.pop((run.flow_id, run.run_id), None)
        if self._latest.get(run.flow_id) is resident:
            del self._latest[run.flow_id]

    def _touch(self, resident: ResidentRun) -> None:
        resident.last_used = self._monotonic()
        if resident.run.key in self._by_key:
            self._by_key.move_to_end(resident.run.key)
