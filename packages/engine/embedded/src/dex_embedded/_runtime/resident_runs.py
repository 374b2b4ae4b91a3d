"""The runs that are in memory, and the one door through which a run changes.

`RunTable.apply` decides an input on a run, stages the rows, and carries the commands out once they
are durable. Decisions on one run are serial because each is a plain call on the loop; what they
cause becomes visible in the order of their commits.

A run is loaded when something concerns it and evicted when it has been idle for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dex_embedded._kernel.decide import decide
from dex_embedded._kernel.inputs import Input, Recover
from dex_embedded._kernel.state import FlowRun, InvocationRef
from dex_embedded._kernel.transition import Command, HandOut, Moment, Transition
from dex_embedded._runtime.faults import AFTER, BEFORE, COMMIT, Faults
from dex_embedded._runtime.worker_streams import WorkerTask
from dex_embedded._store.protocol import RunSummary, Store, Ticket

IDLE_SECONDS: Final = 30.0
MAXIMUM_IDLE: Final = 2_000
"""Idle runs kept in memory although nothing happens to them."""


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


class RunTable:
    """Finds, loads, changes and evicts runs.

    Args:
        store: Where runs live.
        moment: Reads the clock and makes ids, anew for each decision.
        monotonic: For idle times.
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
        faults: Faults,
        carry_out: Callable[[ResidentRun, Command], None],
        decided: Callable[[ResidentRun, Transition], None],
        made_durable: Callable[[ResidentRun, Transition], None],
    ) -> None:
        self._store = store
        self._moment = moment
        self._monotonic = monotonic
        self._faults = faults
        self._carry_out = carry_out
        self._decided = decided
        self._made_durable = made_durable
        self._by_key: OrderedDict[int, ResidentRun] = OrderedDict()
        self._by_run: dict[tuple[str, str], ResidentRun] = {}
        self._latest: dict[str, ResidentRun] = {}
        self._unrecovered: dict[int, RunSummary] = {}

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
        ticket: Ticket | None = None
        # Nobody waits for the mark of an attempt that may be repeated.
        hurried = any(not _is_soft(transition) for transition in to_store)
        if to_store:
            self._faults.reach(place + BEFORE, subject)
            ticket = self._store.stage(*to_store, hurried=hurried)
        for resident, transition in decisions:
            self._touch(resident)
            if ticket is not None and hurried:
                resident.ticket = ticket
            self._decided(resident, transition)

        def carry_out_all() -> None:
            if ticket is not None:
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


def _is_soft(transition: Transition) -> bool:
    """Whether losing the transition in a crash would only repeat what may be repeated."""
    return isinstance(transition.outcome, HandOut) and not transition.outcome.durable_first
