from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_testing import (
    COMPLETE,
    DEAD_END,
    FlowDriver,
    any_of,
    dispatched,
    execute_result,
    messages,
    move,
    one,
    options,
    publishing,
    setting,
    start_with,
    timer,
    withdrawn,
)

from dex_embedded._kernel.errors import FlowNotActiveError, StaleInputError
from dex_embedded._kernel.events import FlowClosed, StepExecuteCompleted, StepPending
from dex_embedded._kernel.inputs import ExecuteSucceeded, StopFlow
from dex_embedded._kernel.state import Phase
from dex_embedded._kernel.values import (
    AttributeWrite,
    CloseDecision,
    CloseType,
    Effects,
    ExecuteResult,
    FlowErrorType,
    FlowStatus,
    MessageDeletion,
    Publication,
    RpcResult,
    StepDecision,
    StepOptions,
    StopType,
)


def close_with(kind: CloseType, output: bytes | None = None) -> CloseDecision:
    return CloseDecision(type=kind, close_input=output, output=output)


def fan_out(*step_types: str) -> FlowDriver:
    """A flow with these steps active, each READY for Execute."""
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", *[move(step_type) for step_type in step_types])
    return flow


def outputs(flow: FlowDriver) -> list[tuple[str, bytes]]:
    return [(output.step_execution_id, output.value) for output in flow.run.result.outputs]


def test_ids_count_per_type_and_every_next_step_starts_at_once() -> None:
    flow = FlowDriver(start_with(options=options()))
    transition = flow.execute("A-1", move("A"), move("B"), move("B"))
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["A-2", "B-1", "B-2"]
    work = flow.hand_out("B-2")
    assert work.from_step_execution_id == "A-1"
    assert work.step_input == b"to B"


def test_graceful_completion_waits_for_the_other_branches_and_collects_all_outputs() -> None:
    flow = fan_out("B", "C", "D")
    flow.execute("C-1", close=close_with(CloseType.GRACEFUL_COMPLETE, b"c"))
    flow.execute("D-1", close=DEAD_END)
    assert flow.run.is_active
    flow.execute("B-1", close=close_with(CloseType.GRACEFUL_COMPLETE, b"b"))
    assert flow.run.status is FlowStatus.COMPLETED
    assert outputs(flow) == [("C-1", b"c"), ("B-1", b"b")]


def test_a_waiting_step_keeps_a_completing_flow_open() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("B", options(skip=False)), move("C"))
    flow.wait_for("B-1", any_of(one("c")))
    flow.execute("C-1", close=COMPLETE)
    assert flow.run.is_active
    flow.publish("c", b"1")
    flow.execute("B-1", close=DEAD_END)
    assert flow.run.status is FlowStatus.COMPLETED


def test_an_output_that_is_absent_or_null_is_not_collected() -> None:
    flow = fan_out("B", "C")
    flow.execute("B-1", close=COMPLETE)
    null = b"\x40\x00"
    flow.execute("C-1", close=replace(COMPLETE, close_input=null))
    assert flow.run.status is FlowStatus.COMPLETED
    assert outputs(flow) == []


def test_force_complete_ends_at_once_and_cancels_everything_else() -> None:
    flow = fan_out("B", "C")
    ref = flow.hand_out("B-1").ref
    transition = flow.execute("C-1", close=close_with(CloseType.FORCE_COMPLETE, b"o"))
    assert flow.run.status is FlowStatus.COMPLETED
    assert outputs(flow) == [("C-1", b"o")]
    assert withdrawn(transition) == [ref]
    assert transition.closed
    with pytest.raises(StaleInputError):
        flow.feed(ExecuteSucceeded(ref=ref, result=execute_result()))


def test_force_fail_fails_with_the_reason_and_reports_no_outputs() -> None:
    flow = fan_out("B", "C")
    flow.execute("B-1", close=close_with(CloseType.GRACEFUL_COMPLETE, b"o"))
    reason = CloseDecision(type=CloseType.FORCE_FAIL, close_input=b"x", reason="no more")
    flow.execute("C-1", close=reason)
    result = flow.run.result
    assert (result.status, result.error_type, result.error_message, result.outputs) == (
        FlowStatus.FAILED,
        FlowErrorType.STEP_DECISION_FAILING_FLOW,
        "no more",
        (),
    )
    closed = flow.events[-1]
    assert isinstance(closed, FlowClosed)
    assert [output.value for output in closed.outputs] == [b"o"]


def test_a_dead_end_leaves_the_flow_running() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", close=DEAD_END)
    assert flow.run.is_active
    assert flow.run.steps == {}


def conditional(*channels: str) -> CloseDecision:
    return CloseDecision(
        type=CloseType.FORCE_COMPLETE_ON_CHANNELS_EMPTY,
        channels=channels,
        close_input=b"o",
        output=b"o",
    )


def test_conditional_completion_completes_when_the_channels_are_empty() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("Again"), close=conditional("c", "d"))
    assert flow.run.status is FlowStatus.COMPLETED
    assert outputs(flow) == [("A-1", b"o")]


def test_conditional_completion_runs_the_next_steps_when_a_message_is_pending() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.publish("d", b"1")
    flow.execute("A-1", move("Again"), close=conditional("c", "d"))
    assert flow.run.is_active
    assert list(flow.run.steps) == ["Again-1"]
    assert flow.run.outputs == []


def test_conditional_completion_sees_what_its_own_result_published() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("Again"), close=conditional("c"), effects=publishing(("c", b"1")))
    assert list(flow.run.steps) == ["Again-1"]


def test_conditional_completion_waits_for_messages_another_execute_works_on() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("B", options(skip=False)), move("C"), move("D"))
    flow.publish("c", b"1")
    flow.wait_for("B-1", any_of(one("c")))
    flow.execute("C-1", move("Again"), close=conditional("c"))
    assert "Again-1" in flow.run.steps
    flow.execute("B-1")
    flow.execute("D-1", move("Again"), close=conditional("c"))
    assert flow.run.status is FlowStatus.COMPLETED


def test_the_conditions_own_consumption_does_not_keep_it_from_completing() -> None:
    flow = FlowDriver()
    flow.publish("c", b"1")
    flow.wait_for("A-1", any_of(one("c")))
    flow.execute("A-1", move("A"), close=conditional("c"))
    assert flow.run.status is FlowStatus.COMPLETED


def test_cancel_by_type_hits_every_other_execution_but_not_the_own_next_steps() -> None:
    flow = FlowDriver(start_with(options=options()))
    waits = options(skip=False)
    flow.execute("A-1", move("B", waits), move("B"), move("B"), move("C"))
    flow.wait_for("B-1", any_of(one("c"), timer(5)))
    running = flow.hand_out("B-2").ref
    ready = flow.step("B-3").ref
    transition = flow.execute("C-1", move("B"), cancel=("B", "Missing"))
    assert list(flow.run.steps) == ["B-4"]
    assert withdrawn(transition) == [running, ready]
    assert transition.wake_at is None
    assert set(transition.ended_steps) == {"B-1", "B-2", "B-3", "C-1"}
    flow.publish("c", b"1")
    assert flow.channel("c") == [b"1"]


def test_sibling_cancel_hits_only_executions_with_the_same_origin() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("B"), move("C"), move("D"))
    flow.execute("B-1", move("D"), move("E"))
    flow.execute("C-1", cancel_siblings=("D",))
    assert list(flow.run.steps) == ["D-2", "E-1"]


def test_cancelling_a_withheld_start_uses_up_its_number() -> None:
    flow = FlowDriver(start_with(start_delay=60))
    flow.rpc(RpcResult(decision=StepDecision(cancel_step_types=("A",), next_steps=(move("A"),))))
    assert list(flow.run.steps) == ["A-2"]
    assert flow.run.step_completed("A", 1)
    assert dispatched(flow.advance(60)) == []


def test_effects_apply_in_order_writes_then_deletions_then_publications() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.publish("c", b"old")
    [old] = flow.message_ids("c")
    effects = Effects(
        attribute_writes=(
            AttributeWrite(key="a", value=b"1"),
            AttributeWrite(key="a", value=b"2"),
            AttributeWrite(key="b", value=None),
        ),
        deletions=(
            MessageDeletion(channel="c", message_id=old),
            MessageDeletion(channel="c", message_id="never was"),
        ),
        publications=(
            Publication(channel="c", value=b"new 1"),
            Publication(channel="c", value=b"new 2"),
        ),
    )
    flow.execute("A-1", effects=effects)
    assert flow.attributes() == {"a": b"2"}
    assert flow.channel("c") == [b"new 1", b"new 2"]
    completed = next(e for e in flow.events if isinstance(e, StepExecuteCompleted))
    assert [message.value for message in completed.published] == [b"new 1", b"new 2"]
    assert len({message.message_id for message in completed.published}) == 2


def test_a_null_write_deletes_the_key() -> None:
    flow = FlowDriver(start_with(options=options(), attributes={"a": b"1", "m/x": b"1"}))
    flow.execute("A-1", effects=setting({"a": None, "m/x": None, "missing": None}))
    assert flow.attributes() == {}


@pytest.mark.parametrize(
    ("problem", "result"),
    [
        ("no decision", ExecuteResult()),
        ("neither next steps", ExecuteResult(decision=StepDecision())),
        ("step type is empty", execute_result(move(""))),
        ("reserved", execute_result(move("A/B"))),
        ("to cancel is empty", execute_result(move("B"), cancel=("",))),
        ("cannot have next steps", execute_result(move("B"), close=COMPLETE)),
        ("has no type", execute_result(close=CloseDecision(type=CloseType.UNSPECIFIED))),
        ("needs a next step", execute_result(close=conditional("c"))),
        ("needs channel names", execute_result(move("B"), close=conditional())),
        ("given twice", execute_result(move("B"), close=conditional("c", "c"))),
        ("is empty", execute_result(move("B"), close=conditional(""))),
        ("only a conditional", execute_result(close=replace(COMPLETE, channels=("c",)))),
        ("dead end has no output", execute_result(close=replace(DEAD_END, close_input=b"x"))),
        (
            "not a string",
            execute_result(close=CloseDecision(type=CloseType.FORCE_FAIL, close_input=b"7")),
        ),
        ("key is empty", execute_result(effects=setting({"": b"1"}))),
        ("without a kind", execute_result(effects=setting({"a": b""}))),
        ("channel name is empty", execute_result(effects=publishing(("", b"1")))),
        ("below the minimum", execute_result(move("B", StepOptions(heartbeat_timeout=3)))),
        ("reserved", execute_result(move("B", StepOptions(failure_step_type="F:")))),
        (
            "is negative",
            execute_result(move("B", StepOptions(failure_step_options=options(timeout=-1)))),
        ),
    ],
)
def test_an_invalid_result_fails_the_attempt_applies_nothing_and_is_retried(
    problem: str, result: ExecuteResult
) -> None:
    flow = FlowDriver(start_with(options=options()))
    ref = flow.hand_out("A-1").ref
    flow.feed(ExecuteSucceeded(ref=ref, result=result))
    step = flow.step("A-1")
    assert step.phase is Phase.BACKING_OFF
    assert step.invocation is not None
    assert step.invocation.last_failure is not None
    assert problem in step.invocation.last_failure.detail
    assert flow.attributes() == {}


@pytest.mark.parametrize(
    ("stop", "status", "error_type", "message"),
    [
        (StopFlow(), FlowStatus.CANCELED, FlowErrorType.NONE, ""),
        (StopFlow(type=StopType.CANCEL), FlowStatus.CANCELED, FlowErrorType.NONE, ""),
        (StopFlow(type=StopType.TERMINATE), FlowStatus.TERMINATED, FlowErrorType.NONE, ""),
        (
            StopFlow(type=StopType.FAIL),
            FlowStatus.FAILED,
            FlowErrorType.CLIENT_API_FAILING_FLOW,
            "fail by client",
        ),
        (
            StopFlow(type=StopType.FAIL, reason="enough"),
            FlowStatus.FAILED,
            FlowErrorType.CLIENT_API_FAILING_FLOW,
            "enough",
        ),
    ],
)
def test_a_stop_closes_the_run_in_one_transition(
    stop: StopFlow, status: FlowStatus, error_type: FlowErrorType, message: str
) -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("B", options(skip=False)), move("C"), move("D"))
    flow.wait_for("B-1", any_of(messages("c", 1, 1), timer(9)))
    running = flow.hand_out("C-1").ref
    ready = flow.step("D-1").ref
    transition = flow.feed(stop)
    assert (flow.run.status, flow.run.error_type, flow.run.error_message) == (
        status,
        error_type,
        message,
    )
    assert withdrawn(transition) == [running, ready]
    assert transition.wake_at is None
    with pytest.raises(FlowNotActiveError):
        flow.feed(StopFlow())


def test_history_shows_methods_without_outcome_before_the_closing_event() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("B"), move("C"))
    flow.hand_out("B-1")
    flow.feed(StopFlow(type=StopType.TERMINATE, reason="why"))
    *_, b, c, closed = flow.events
    assert isinstance(b, StepPending)
    assert isinstance(c, StepPending)
    assert (b.context.step_execution_id, b.phase.name) == ("B-1", "STARTED")
    assert (c.context.step_execution_id, c.phase.name) == ("C-1", "SCHEDULED")
    assert isinstance(closed, FlowClosed)
    assert closed.error_message == "why"


def test_step_completion_can_be_asked_for_running_finished_and_future_executions() -> None:
    flow = FlowDriver(start_with(options=options()))
    assert not flow.run.step_completed("A", 1)
    flow.execute("A-1", move("B"))
    assert flow.run.step_completed("A", 1)
    assert not flow.run.step_completed("A", 2)
    assert not flow.run.step_completed("B", 1)
    assert not flow.run.step_completed("Unknown", 1)
