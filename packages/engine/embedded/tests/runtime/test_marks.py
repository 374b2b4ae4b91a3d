"""When the hand-out of an attempt is written to the store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernel_testing import FlowDriver, execute_result, move, options, start_with

from dex_embedded._kernel.inputs import ExecuteSucceeded, TaskHandedOut
from dex_embedded._kernel.state import InvocationRef
from dex_embedded._kernel.transition import Moment, PutStep, Transition
from dex_embedded._kernel.values import Routing
from dex_embedded._runtime.faults import Faults
from dex_embedded._runtime.resident_runs import MARK_AFTER, ResidentRun, RunTable

from .fake_time import FakeTime


class DurableTicket:
    is_durable = True

    def add_callback(self, callback: Callable[[], None]) -> None:
        callback()


class RecordingStore:
    """Keeps what is staged; everything is durable at once."""

    def __init__(self) -> None:
        self.staged: list[Transition] = []

    def stage(self, *transitions: Transition, hurried: bool = True) -> DurableTicket:
        self.staged.extend(transitions)
        return DurableTicket()


class Bench:
    """One run with one Step, in a table whose time a test moves."""

    def __init__(self, maximum_attempts: int = 0) -> None:
        self.time = FakeTime()
        self.store = RecordingStore()
        self.driver = FlowDriver(start_with(options=options(attempts=maximum_attempts)))
        self.runs = RunTable(
            self.store,  # pyright: ignore[reportArgumentType] - only what this test needs
            moment=self.moment,
            monotonic=self.time.monotonic,
            call_later=self.time.call_later,
            faults=Faults(),
            carry_out=lambda *_: None,
            decided=lambda *_: None,
            made_durable=lambda *_: None,
        )
        self.resident: ResidentRun = self.runs.add(self.driver.run, is_latest=True)

    def moment(self) -> Moment:
        return self.driver.moment()

    @property
    def ref(self) -> InvocationRef:
        (step,) = self.driver.run.steps.values()
        return step.ref

    def hand_out(self) -> None:
        self.runs.apply(self.resident, TaskHandedOut(ref=self.ref, routing=Routing()))

    def finish(self) -> None:
        result = execute_result(move("Next"))
        self.runs.apply(self.resident, ExecuteSucceeded(ref=self.ref, result=result))

    def marks(self) -> int:
        """Rows of a Step that exists already, which only a hand-out writes here."""
        return sum(
            isinstance(change, PutStep) and not change.is_new
            for transition in self.store.staged
            for change in transition.changes
        )


def test_the_hand_out_of_an_attempt_that_ends_soon_is_never_written() -> None:
    bench = Bench()
    bench.hand_out()
    bench.finish()
    bench.time.advance(10 * MARK_AFTER)
    assert bench.marks() == 0


def test_the_hand_out_of_an_attempt_that_lasts_is_written_once() -> None:
    bench = Bench()
    bench.hand_out()
    bench.time.advance(10 * MARK_AFTER)
    assert bench.marks() == 1


def test_a_hand_out_waits_its_own_time_behind_an_older_one() -> None:
    bench = Bench()
    bench.hand_out()
    bench.time.advance(MARK_AFTER / 2)
    bench.finish()
    bench.hand_out()
    bench.time.advance(MARK_AFTER * 0.75)
    assert bench.marks() == 0
    bench.time.advance(MARK_AFTER / 2)
    assert bench.marks() == 1


def test_a_single_attempt_is_marked_before_anything_else_happens() -> None:
    bench = Bench(maximum_attempts=1)
    bench.hand_out()
    assert bench.marks() == 1


@pytest.mark.parametrize("ended", [True, False])
def test_an_engine_that_stops_writes_the_hand_outs_of_what_still_runs(ended: bool) -> None:
    bench = Bench()
    bench.hand_out()
    if ended:
        bench.finish()
    bench.runs.stop()
    assert bench.marks() == (0 if ended else 1)
    bench.time.advance(10 * MARK_AFTER)
    assert bench.marks() == (0 if ended else 1)
