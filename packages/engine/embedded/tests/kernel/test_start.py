from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_testing import (
    START,
    FlowDriver,
    any_of,
    dispatched,
    move,
    one,
    start_with,
    timer,
    writes,
)

from dex_embedded._kernel.errors import (
    FlowAlreadyStartedError,
    InvalidRequestError,
    UnsupportedError,
)
from dex_embedded._kernel.events import FlowStarted
from dex_embedded._kernel.inputs import StartFlow
from dex_embedded._kernel.start import PreviousRun, StartPlan, plan_start
from dex_embedded._kernel.transition import DEFAULT_LIMITS
from dex_embedded._kernel.values import (
    AttributeWrite,
    FlowStatus,
    IdReusePolicy,
    Method,
    RpcResult,
    StepDecision,
    StepOptions,
)

REJECT, START_IT, REPLACE = "reject", "start", "terminate, then start"


def planned(previous: PreviousRun | None, request: StartFlow) -> StartPlan:
    return plan_start(previous, request, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    ("policy", "status", "expected"),
    [
        (IdReusePolicy.UNSPECIFIED, FlowStatus.RUNNING, REJECT),
        (IdReusePolicy.UNSPECIFIED, FlowStatus.COMPLETED, REJECT),
        (IdReusePolicy.UNSPECIFIED, FlowStatus.FAILED, REJECT),
        (IdReusePolicy.DISALLOW_REUSE, FlowStatus.RUNNING, REJECT),
        (IdReusePolicy.DISALLOW_REUSE, FlowStatus.CANCELED, REJECT),
        (IdReusePolicy.ALLOW_IF_NO_RUNNING, FlowStatus.RUNNING, REJECT),
        (IdReusePolicy.ALLOW_IF_NO_RUNNING, FlowStatus.COMPLETED, START_IT),
        (IdReusePolicy.ALLOW_IF_NO_RUNNING, FlowStatus.TERMINATED, START_IT),
        (IdReusePolicy.ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY, FlowStatus.RUNNING, REJECT),
        (IdReusePolicy.ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY, FlowStatus.COMPLETED, REJECT),
        (IdReusePolicy.ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY, FlowStatus.FAILED, START_IT),
        (IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING, FlowStatus.RUNNING, REPLACE),
        (IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING, FlowStatus.COMPLETED, START_IT),
    ],
)
def test_the_id_reuse_policy_weighs_the_status_of_the_latest_run(
    policy: IdReusePolicy, status: FlowStatus, expected: str
) -> None:
    request = replace(start_with(), id_reuse_policy=policy)
    previous = PreviousRun(run_id="old", request_id="other", status=status)
    if expected == REJECT:
        with pytest.raises(FlowAlreadyStartedError) as caught:
            planned(previous, request)
        assert caught.value.run_id == "old"
    else:
        plan = planned(previous, request)
        assert plan.existing_run_id == ""
        assert plan.terminate_first == (expected == REPLACE)


def test_a_fresh_id_is_started_under_every_policy() -> None:
    for policy in IdReusePolicy:
        plan = planned(None, replace(start_with(), id_reuse_policy=policy))
        assert (plan.existing_run_id, plan.terminate_first) == ("", False)


def test_a_repeated_request_id_returns_the_run_only_when_the_caller_asks_for_that() -> None:
    previous = PreviousRun(run_id="old", request_id="request", status=FlowStatus.RUNNING)
    request = replace(start_with(), ignore_already_started=True)
    assert planned(previous, request).existing_run_id == "old"
    with pytest.raises(FlowAlreadyStartedError):
        planned(previous, replace(request, ignore_already_started=False))
    with pytest.raises(FlowAlreadyStartedError):
        planned(previous, replace(request, request_id="another"))


def test_a_policy_that_permits_a_new_run_starts_one_even_for_a_repeated_request_id() -> None:
    previous = PreviousRun(run_id="old", request_id="request", status=FlowStatus.COMPLETED)
    request = replace(
        start_with(),
        id_reuse_policy=IdReusePolicy.ALLOW_IF_NO_RUNNING,
        ignore_already_started=True,
    )
    assert planned(previous, request).existing_run_id == ""


@pytest.mark.parametrize("character", ["/", "$", ":"])
def test_reserved_characters_in_flow_ids_and_step_types_are_named(character: str) -> None:
    for request in (
        replace(start_with(), flow_id=f"a{character}b"),
        start_with(f"A{character}B"),
        start_with(options=StepOptions(failure_step_type=f"F{character}")),
    ):
        with pytest.raises(InvalidRequestError, match="reserved") as caught:
            planned(None, request)
        assert repr(character) in str(caught.value)


@pytest.mark.parametrize(
    "broken",
    [
        {"flow_id": ""},
        {"flow_type": ""},
        {"request_id": ""},
        {"timeout": -1},
        {"start_delay": -1},
        {"attributes": writes({"": b"1"})},
        {"attributes": (AttributeWrite(key="a", value=b""),)},
        {"attributes": (*writes({"a": b"1"}), *writes({"a": b"2"}))},
        {"start_step_options": StepOptions(heartbeat_timeout=9)},
        {"start_step_options": StepOptions(heartbeat_timeout=-1)},
    ],
)
def test_a_malformed_start_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        planned(None, replace(start_with(), **broken))  # type: ignore[arg-type]  # odd on purpose


@pytest.mark.parametrize(
    ("field", "feature"),
    [
        ({"timeout": 10}, "flow timeouts"),
        ({"has_retry_policy": True}, "flow retry policies"),
        ({"has_timeout_handler": True}, "flow timeout handlers"),
    ],
)
def test_a_start_that_needs_an_unserved_feature_is_refused_by_name(
    field: dict[str, object], feature: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        planned(None, replace(start_with(), **field))  # type: ignore[arg-type]  # odd on purpose
    assert caught.value.feature == feature


def test_a_started_run_shows_its_attributes_and_dispatches_its_start_step() -> None:
    flow = FlowDriver(start_with(attributes={"a": b"1", "m/x": b"2"}))
    assert flow.run.status is FlowStatus.RUNNING
    assert flow.attributes() == {"a": b"1", "m/x": b"2"}
    [ref] = dispatched(flow.last)
    assert (ref.step_execution_id, ref.method, ref.attempt) == ("A-1", Method.WAIT_FOR, 1)
    work = flow.hand_out("A-1")
    assert work.from_step_execution_id == "__start__"
    assert work.step_input == b"input"
    [started] = flow.events
    assert isinstance(started, FlowStarted)
    assert started.run_id == flow.run.run_id


def test_null_initial_attributes_are_ignored() -> None:
    request = replace(start_with(), attributes=writes({"a": None, "b": b"1"}))
    assert FlowDriver(request).attributes() == {"b": b"1"}


def test_a_flow_without_a_start_step_stays_running_until_an_rpc_gives_it_steps() -> None:
    flow = FlowDriver(StartFlow(flow_id="flow", flow_type="Flow", request_id="request"))
    assert flow.run.status is FlowStatus.RUNNING
    assert flow.last.commands == []
    flow.rpc(RpcResult(output=b"o", decision=StepDecision(next_steps=(move("A"),))))
    assert flow.hand_out("A-1").from_step_execution_id == "__rpc/r"


def test_a_start_delay_withholds_the_start_step_and_nothing_else() -> None:
    flow = FlowDriver(start_with(start_delay=60))
    assert flow.last.commands == []
    assert flow.last.wake_at == START + 60
    flow.publish("c", b"early")
    assert dispatched(flow.advance(59)) == []
    assert [ref.step_execution_id for ref in dispatched(flow.advance(1))] == ["A-1"]
    flow.wait_for("A-1", any_of(timer(10), one("c")))
    assert flow.step("A-1").method is Method.EXECUTE
