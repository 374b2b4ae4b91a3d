from __future__ import annotations

from kernel_testing import (
    START,
    FlowDriver,
    any_of,
    dispatched,
    move,
    one,
    options,
    start_with,
    timer,
)

from dex_embedded._kernel.inputs import HeartbeatReceived, Recover, TaskDropped
from dex_embedded._kernel.state import Phase
from dex_embedded._kernel.values import FlowStatus, Method


def test_an_attempt_in_a_workers_hands_is_lost_and_retried_at_once_with_its_heartbeat() -> None:
    flow = FlowDriver(start_with(options=options(), attributes={"a": b"1"}))
    work = flow.hand_out("A-1")
    flow.feed(HeartbeatReceived(ref=work.ref, value=b"half"))
    flow.now += 60
    transition = flow.feed(Recover())
    assert [ref.attempt for ref in dispatched(transition)] == [2]
    again = flow.hand_out("A-1")
    assert again.last_heartbeat == b"half"
    assert again.first_attempt_at == work.first_attempt_at
    assert again.snapshot == work.snapshot


def test_a_single_attempt_in_a_workers_hands_takes_its_failure_route() -> None:
    flow = FlowDriver(start_with(options=options(attempts=1, on_failure="Recovery")))
    flow.hand_out("A-1")
    transition = flow.feed(Recover())
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["Recovery-1"]


def test_a_single_attempt_without_a_route_fails_the_flow() -> None:
    flow = FlowDriver(start_with(options=options(attempts=1)))
    flow.hand_out("A-1")
    flow.feed(Recover())
    assert flow.run.status is FlowStatus.FAILED


def test_an_attempt_that_was_never_handed_out_is_simply_dispatched() -> None:
    flow = FlowDriver(start_with(options=options(attempts=1)))
    ref = flow.step("A-1").ref
    assert dispatched(flow.feed(Recover())) == [ref]
    assert flow.hand_out("A-1").ref.attempt == 1


def test_a_waiting_step_keeps_its_wait_its_messages_and_its_timer() -> None:
    flow = FlowDriver()
    flow.wait_for("A-1", any_of(timer(100), one("c")))
    flow.publish("d", b"1")
    transition = flow.feed(Recover())
    assert transition.changes == []
    assert transition.wake_at == START + 100


def test_an_overdue_timer_fires() -> None:
    flow = FlowDriver()
    flow.wait_for("A-1", any_of(timer(100)))
    flow.now += 5_000
    transition = flow.feed(Recover())
    assert [ref.method for ref in dispatched(transition)] == [Method.EXECUTE]


def test_an_overdue_retry_and_an_overdue_start_happen() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.fail("A-1")
    flow.now += 500
    assert [ref.attempt for ref in dispatched(flow.feed(Recover()))] == [2]
    delayed = FlowDriver(start_with(start_delay=60))
    delayed.now += 500
    assert len(dispatched(delayed.feed(Recover()))) == 1


def test_downtime_beyond_what_an_attempt_may_take_is_not_part_of_the_budget() -> None:
    flow = FlowDriver(start_with(options=options(attempts=3, timeout=100, total=150)))
    flow.hand_out("A-1")
    flow.now += 10_000
    flow.feed(Recover())
    assert flow.run.is_active
    # 100 of the 150 seconds are taken as spent.
    assert flow.hand_out("A-1").deadline == flow.now + 50


def test_downtime_during_a_back_off_is_not_part_of_the_budget() -> None:
    flow = FlowDriver(start_with(options=options(total=10)))
    flow.fail("A-1")
    flow.now += 10_000
    flow.feed(Recover())
    assert flow.hand_out("A-1").deadline == flow.now + 9


def test_downtime_while_a_retry_waits_for_a_worker_is_not_part_of_the_budget() -> None:
    flow = FlowDriver(start_with(options=options(total=10)))
    flow.fail("A-1")
    flow.advance(1)
    flow.now += 10_000
    flow.feed(Recover())
    assert flow.hand_out("A-1").deadline == flow.now + 9


def test_locks_held_by_a_step_survive_and_those_of_an_rpc_do_not() -> None:
    flow = FlowDriver(start_with(options=options()))
    call = flow.start_rpc(locks=("k",))
    flow.execute("A-1", move("B", options(locks=("k",))))
    assert flow.step("B-1").phase is Phase.LOCKED_OUT
    # A restart forgets calls in flight.
    flow.run.rpcs.clear()
    flow.run.locks.clear()
    transition = flow.feed(Recover())
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["B-1"]
    assert flow.run.locks == {"k": "B-1"}
    del call


def test_losing_one_step_may_close_the_run_under_the_others() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("B", options(attempts=1)), move("C"), move("D"))
    flow.hand_out("B-1")
    flow.hand_out("C-1")
    transition = flow.feed(Recover())
    assert flow.run.status is FlowStatus.FAILED
    assert dispatched(transition) == []


def test_a_restart_counts_a_lost_attempt_even_after_free_reoffers() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.feed(TaskDropped(ref=flow.hand_out("A-1").ref))
    flow.hand_out("A-1")
    flow.feed(Recover())
    assert flow.step("A-1").ref.attempt == 2
