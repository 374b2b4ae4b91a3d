from __future__ import annotations

import pytest
from kernel_testing import (
    START,
    WORKER_ERROR,
    FlowDriver,
    dispatched,
    execute_result,
    move,
    options,
    setting,
    start_with,
    withdrawn,
)

from dex_embedded._kernel.errors import StaleInputError
from dex_embedded._kernel.events import StepExecuteCompleted, StepFailed
from dex_embedded._kernel.inputs import (
    ExecuteSucceeded,
    HeartbeatReceived,
    MethodFailed,
    Recover,
    TaskDropped,
    TaskHandedOut,
    TaskReturned,
    WaitForSucceeded,
)
from dex_embedded._kernel.retry import FREE_REOFFERS
from dex_embedded._kernel.state import Phase
from dex_embedded._kernel.values import (
    Durability,
    Failure,
    FailureKind,
    FlowErrorType,
    FlowStatus,
    Method,
    MethodOptions,
    RpcResult,
    Selection,
    StepOptions,
    WaitForResult,
)


def lost() -> Failure:
    return Failure(kind=FailureKind.WORKER_LOST, detail="stream broke")


def setting_rpc(values: dict[str, bytes | None]) -> RpcResult:
    return RpcResult(output=b"o", effects=setting(values))


def test_waits_between_attempts_double_from_one_second_up_to_a_hundred() -> None:
    flow = FlowDriver(start_with(options=options()))
    waits: list[float] = []
    for _ in range(9):
        transition = flow.fail("A-1")
        assert transition.wake_at is not None
        waits.append(transition.wake_at - flow.now)
        flow.advance(waits[-1])
    assert waits == [1, 2, 4, 8, 16, 32, 64, 100, 100]


def test_attempts_count_up_and_keep_the_first_attempt_time() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.now += 5
    seen: list[tuple[int, float]] = []
    for _ in range(3):
        work = flow.hand_out("A-1")
        seen.append((work.ref.attempt, work.first_attempt_at))
        flow.feed(MethodFailed(ref=work.ref, failure=WORKER_ERROR))
        flow.advance(100)
    assert seen == [(1, START + 5), (2, START + 5), (3, START + 5)]


def test_execute_starts_at_attempt_one_after_a_retried_wait_for() -> None:
    flow = FlowDriver()
    flow.fail("A-1")
    flow.advance(1)
    flow.wait_for("A-1")
    work = flow.hand_out("A-1")
    assert (work.method, work.ref.attempt) == (Method.EXECUTE, 1)
    assert work.first_attempt_at == flow.now


def test_retry_after_replaces_one_interval_only() -> None:
    flow = FlowDriver(start_with(options=options()))
    asked = Failure(kind=FailureKind.WORKER_ERROR, detail="busy", retry_after=300)
    assert flow.fail("A-1", asked).wake_at == flow.now + 300
    flow.advance(300)
    assert flow.fail("A-1").wake_at == flow.now + 2


def test_a_lost_worker_is_retried_at_once() -> None:
    flow = FlowDriver(start_with(options=options()))
    transition = flow.fail("A-1", lost())
    assert [ref.attempt for ref in dispatched(transition)] == [2]


def test_the_last_allowed_attempt_fails_the_flow_with_the_workers_words() -> None:
    flow = FlowDriver(start_with(options=options(attempts=2)))
    flow.fail("A-1")
    flow.advance(1)
    flow.fail("A-1")
    assert flow.run.status is FlowStatus.FAILED
    assert flow.run.result.error_type is FlowErrorType.WORKER_API_FAIL
    assert flow.run.result.error_message == "boom"
    failed = [event for event in flow.events if isinstance(event, StepFailed)]
    assert [event.failure.attempt for event in failed] == [2]
    assert failed[0].context.last_failure is not None
    assert failed[0].context.last_failure.attempt == 1


def test_total_duration_ends_retries_although_attempts_remain() -> None:
    flow = FlowDriver(start_with(options=options(attempts=100, total=10)))
    flow.fail("A-1")
    flow.advance(1)
    ref = flow.hand_out("A-1").ref
    flow.now += 7
    flow.feed(MethodFailed(ref=ref, failure=WORKER_ERROR))  # at 8 s; the next one would be at 10 s
    assert flow.run.status is FlowStatus.FAILED


def test_retry_after_beyond_the_total_duration_fails_now() -> None:
    flow = FlowDriver(start_with(options=options(total=10)))
    flow.fail("A-1", Failure(kind=FailureKind.WORKER_ERROR, detail="busy", retry_after=10))
    assert flow.run.status is FlowStatus.FAILED


def test_the_deadline_of_an_attempt_is_its_timeout_or_the_end_of_the_total_duration() -> None:
    flow = FlowDriver(start_with(options=options(timeout=30, total=40)))
    assert flow.hand_out("A-1").deadline == flow.now + 30
    flow.now += 20
    flow.feed(MethodFailed(ref=flow.step("A-1").ref, failure=WORKER_ERROR))
    flow.advance(1)
    assert flow.hand_out("A-1").deadline == START + 40


def test_default_deadline_is_two_hours_and_default_heartbeat_a_minute() -> None:
    work = FlowDriver(start_with(options=options())).hand_out("A-1")
    assert work.deadline == START + 7_200
    assert work.heartbeat_timeout == 60


def test_an_async_method_is_not_timed_out_in_its_first_seven_seconds() -> None:
    asynchronous = MethodOptions(timeout=2, durability=Durability.ASYNC)
    flow = FlowDriver(start_with(options=StepOptions(skip_wait_for=True, execute=asynchronous)))
    assert flow.hand_out("A-1").deadline == START + 7


def test_time_a_retry_waits_for_a_worker_is_not_part_of_the_budget() -> None:
    flow = FlowDriver(start_with(options=options(total=10)))
    flow.fail("A-1")
    flow.advance(1)
    flow.now += 1_000  # no worker
    work = flow.hand_out("A-1")
    assert work.deadline == START + 1_010
    flow.feed(MethodFailed(ref=work.ref, failure=WORKER_ERROR))
    assert flow.run.is_active


def test_a_timeout_withdraws_the_task_and_says_timeout() -> None:
    flow = FlowDriver(start_with(options=options(attempts=1)))
    ref = flow.hand_out("A-1").ref
    failure = Failure(kind=FailureKind.HEARTBEAT_TIMEOUT, detail="silent for 60 s")
    transition = flow.feed(MethodFailed(ref=ref, failure=failure))
    assert withdrawn(transition) == [ref]
    assert "timeout" in flow.run.result.error_message


def test_a_late_result_of_a_timed_out_attempt_is_stale_and_changes_nothing() -> None:
    flow = FlowDriver(start_with(options=options()))
    ref = flow.hand_out("A-1").ref
    flow.feed(MethodFailed(ref=ref, failure=Failure(kind=FailureKind.TIMEOUT, detail="timeout")))
    flow.advance(1)
    second = flow.hand_out("A-1").ref
    with pytest.raises(StaleInputError):
        flow.feed(ExecuteSucceeded(ref=ref, result=execute_result(effects=setting({"a": b"1"}))))
    assert flow.attributes() == {}
    assert flow.step("A-1").ref == second


def test_every_retry_sees_the_snapshot_of_the_first_attempt() -> None:
    load = Selection(attribute_maps=("m/",), channels=("c",))
    flow = FlowDriver(
        start_with(options=options(load=load), attributes={"a": b"1", "m/x": b"1", "m/y": b"1"})
    )
    flow.publish("c", b"first")
    first = flow.hand_out("A-1")
    flow.rpc(setting_rpc({"a": b"2", "m/x": None, "m/z": b"3"}))
    flow.publish("c", b"second")
    flow.feed(MethodFailed(ref=first.ref, failure=lost()))
    second = flow.hand_out("A-1")
    assert second.snapshot == first.snapshot
    assert [v.value for v in second.snapshot.attributes] == [b"1", b"1", b"1"]
    assert second.snapshot.channel_sizes == (("c", 1),)


def test_wait_for_and_execute_have_their_own_snapshots() -> None:
    flow = FlowDriver(start_with(attributes={"a": b"1"}))
    flow.wait_for("A-1", effects=setting({"a": b"2"}))
    [version] = flow.hand_out("A-1").snapshot.attributes
    assert version.value == b"2"


def test_a_failed_attempt_applies_nothing_and_a_success_applies_everything_at_once() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.fail("A-1")
    assert flow.attributes() == {}
    flow.advance(1)
    flow.execute("A-1", move("B"), effects=setting({"a": b"1"}))
    assert flow.attributes() == {"a": b"1"}
    assert list(flow.run.steps) == ["B-1"]


def test_the_next_attempt_gets_the_heartbeat_value_and_a_stored_null_is_present() -> None:
    flow = FlowDriver(start_with(options=options()))
    null = b"\x40\x00"
    for value, expected in ((b"7", b"7"), (null, null), (None, None)):
        work = flow.hand_out("A-1")
        flow.feed(HeartbeatReceived(ref=work.ref, value=b"earlier"))
        flow.feed(HeartbeatReceived(ref=work.ref, value=value))
        flow.feed(MethodFailed(ref=work.ref, failure=lost()))
        work = flow.hand_out("A-1")
        assert work.last_heartbeat == expected
        flow.feed(MethodFailed(ref=work.ref, failure=lost()))


def test_an_attempt_that_sends_no_heartbeat_hands_none_on() -> None:
    flow = FlowDriver(start_with(options=options()))
    work = flow.hand_out("A-1")
    flow.feed(HeartbeatReceived(ref=work.ref, value=b"7"))
    flow.feed(MethodFailed(ref=work.ref, failure=lost()))
    flow.fail("A-1", lost())
    assert flow.hand_out("A-1").last_heartbeat is None


def test_a_rejected_hand_out_never_happened() -> None:
    flow = FlowDriver(start_with(options=options(attempts=1), attributes={"a": b"1"}))
    ref = flow.hand_out("A-1").ref
    transition = flow.feed(TaskReturned(ref=ref))
    assert dispatched(transition) == [ref]
    flow.rpc(setting_rpc({"a": b"2"}))
    flow.now += 50
    work = flow.hand_out("A-1")
    assert (work.ref.attempt, work.first_attempt_at) == (1, START + 50)
    assert [version.value for version in work.snapshot.attributes] == [b"2"]


def test_a_reject_of_a_retry_keeps_attempt_snapshot_and_first_attempt_time() -> None:
    flow = FlowDriver(start_with(options=options(), attributes={"a": b"1"}))
    first = flow.hand_out("A-1")
    flow.feed(MethodFailed(ref=first.ref, failure=lost()))
    second = flow.hand_out("A-1")
    flow.feed(TaskReturned(ref=second.ref))
    again = flow.hand_out("A-1")
    assert again.ref.attempt == 2
    assert again.first_attempt_at == first.first_attempt_at
    assert again.snapshot is first.snapshot


def test_a_single_attempt_task_wants_its_mark_durable_and_is_never_offered_twice() -> None:
    flow = FlowDriver(start_with(options=options(attempts=1, on_failure="Recovery")))
    work = flow.hand_out("A-1")
    assert work.durable_first
    transition = flow.feed(TaskDropped(ref=work.ref))
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["Recovery-1"]
    recovery = flow.hand_out("Recovery-1").recovery_error
    assert recovery is not None
    assert recovery.error_type == "worker_lost"


def test_a_retryable_task_is_reoffered_for_free_three_times_per_attempt() -> None:
    flow = FlowDriver(start_with(options=options(attempts=2)))
    for attempt in (1, 2):
        for _ in range(FREE_REOFFERS):
            work = flow.hand_out("A-1")
            assert not work.durable_first
            assert work.ref.attempt == attempt
            flow.feed(TaskDropped(ref=work.ref))
        assert flow.run.is_active
        flow.feed(TaskDropped(ref=flow.hand_out("A-1").ref))
    assert flow.run.status is FlowStatus.FAILED


@pytest.mark.parametrize("was_out", [True, False], ids=["out", "ready"])
def test_after_a_restart_what_may_have_ended_the_engine_is_marked_before_it_goes_out(
    was_out: bool,
) -> None:
    flow = FlowDriver(start_with(options=options(attempts=5)))
    if was_out:
        assert not flow.hand_out("A-1").durable_first
    flow.feed(Recover())
    again = flow.hand_out("A-1")
    assert again.durable_first
    assert again.ref.attempt == (2 if was_out else 1)
    flow.feed(MethodFailed(ref=again.ref, failure=lost()))
    assert flow.hand_out("A-1").durable_first


def test_a_method_that_begins_after_a_restart_is_not_suspected() -> None:
    flow = FlowDriver(start_with(options=options(skip=False)))
    flow.feed(Recover())
    waiting = flow.hand_out("A-1")
    flow.feed(WaitForSucceeded(ref=waiting.ref, result=WaitForResult()))
    assert not flow.hand_out("A-1").durable_first


def test_a_drop_after_progress_counts_at_once() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.feed(TaskDropped(ref=flow.hand_out("A-1").ref, had_progress=True))
    assert flow.step("A-1").ref.attempt == 2


def test_a_dropped_first_attempt_keeps_its_snapshot_since_it_may_have_run() -> None:
    flow = FlowDriver(start_with(options=options(), attributes={"a": b"1"}))
    first = flow.hand_out("A-1")
    flow.feed(TaskDropped(ref=first.ref))
    flow.feed(TaskReturned(ref=flow.hand_out("A-1").ref))
    again = flow.hand_out("A-1")
    assert again.first_attempt_at == first.first_attempt_at
    assert again.snapshot is first.snapshot


def test_an_execute_failure_route_starts_the_named_step_with_the_same_input() -> None:
    flow = FlowDriver(start_with(options=options(attempts=1, on_failure="Recovery")))
    flow.fail("A-1")
    assert flow.run.is_active
    work = flow.hand_out("Recovery-1")
    assert work.step_input == b"input"
    assert work.from_step_execution_id == "A-1"
    assert work.recovery_error is not None
    assert (work.recovery_error.detail, work.recovery_error.error_type) == ("boom", "app.Boom")
    flow.feed(MethodFailed(ref=work.ref, failure=lost()))
    assert flow.hand_out("Recovery-1").recovery_error == work.recovery_error


def test_a_failed_wait_for_can_proceed_to_execute_of_the_same_execution() -> None:
    flow = FlowDriver(start_with(options=options(skip=False, attempts=1, on_failure="unused")))
    flow.fail("A-1")
    work = flow.hand_out("A-1")
    assert work.method is Method.EXECUTE
    assert work.results is not None
    assert work.results.wait_for_failed
    assert (work.results.timers, work.results.channels) == ((), ())
    assert work.recovery_error is not None
    assert work.recovery_error.detail == "boom"


def test_a_request_that_does_not_fit_is_not_retried() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.fail("A-1", Failure(kind=FailureKind.TOO_LARGE, detail="5 MiB, limit 3.5 MiB"))
    assert flow.run.status is FlowStatus.FAILED
    assert flow.run.result.error_message == "5 MiB, limit 3.5 MiB"


def test_an_attempt_cannot_be_handed_out_twice() -> None:
    flow = FlowDriver(start_with(options=options()))
    ref = flow.hand_out("A-1").ref
    with pytest.raises(StaleInputError):
        flow.feed(TaskHandedOut(ref=ref))


def test_history_tells_of_a_retried_execute_once_with_its_last_failure() -> None:
    flow = FlowDriver(start_with(options=options(), attributes={"a": b"1"}))
    flow.fail("A-1")
    flow.advance(1)
    flow.now += 3
    flow.execute("A-1")
    [completed] = [event for event in flow.events if isinstance(event, StepExecuteCompleted)]
    context = completed.context
    assert (context.final_attempt, context.started_at, context.duration) == (2, START, 4)
    assert context.durability is Durability.SYNC
    assert context.last_failure is not None
    assert context.last_failure.detail == "boom"
    assert context.routing.served_by == "worker"
    assert [version.key for version in completed.input.attributes] == ["a"]


def test_the_worker_that_answered_becomes_the_sticky_one() -> None:
    flow = FlowDriver(start_with(options=options()))
    ref = flow.hand_out("A-1", worker="w1").ref
    assert flow.run.sticky_worker == ""
    flow.feed(ExecuteSucceeded(ref=ref, result=execute_result(move("B"))))
    assert flow.run.sticky_worker == "w1"


def test_a_step_that_backs_off_cannot_be_handed_out() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.fail("A-1")
    assert flow.step("A-1").phase is Phase.BACKING_OFF
    with pytest.raises(StaleInputError):
        flow.hand_out("A-1")
