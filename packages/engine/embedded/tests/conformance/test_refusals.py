"""What an engine may leave out: it then says so by name, and nothing happens."""

# The SDK takes asynchronous handlers; its base class is typed for synchronous ones.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from dex import (
    AsyncContext,
    DexServiceError,
    Flow,
    FlowConfig,
    FlowNotFoundError,
    FlowStatus,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    SubFlow,
    TimeTravelOptions,
    TimeTravelType,
    Wait,
    WorkerTarget,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import Script
from engine_testing.world import World, open_world
from grpc.aio import AioRpcError

behaviour = pytest.mark.behaviour
Note: TypeAlias = Callable[[str, object], None]
REFUSED = ("outcome", "refused by name")
"""What a test notes when the engine refuses; either outcome is right."""


def check_refusal(error: DexServiceError | AioRpcError, word: str) -> None:
    code = error.code if isinstance(error, DexServiceError) else error.code()
    words = error.detail if isinstance(error, DexServiceError) else error.details()
    assert code.name == "UNIMPLEMENTED"
    assert word in (words or "")


async def check_start(world: World, record: Note, word: str, **options: Any) -> None:
    """Either the engine serves these options, or it refuses the start and names them."""
    script = Script()
    try:
        await world.start(script, **options)
    except DexServiceError as refusal:
        check_refusal(refusal, word)
        record(*REFUSED)
        with pytest.raises(FlowNotFoundError):
            await world.client.describe_flow(script.flow_id)


@behaviour("refused.flow-timeout")
async def test_a_flow_timeout_is_served_or_refused_by_name(
    bare_world: World, record_property: Note
) -> None:
    await check_start(bare_world, record_property, "flow timeouts", timeout=timedelta(seconds=30))


@behaviour("refused.flow-retry")
async def test_a_flow_retry_policy_is_served_or_refused_by_name(
    bare_world: World, record_property: Note
) -> None:
    await check_start(
        bare_world, record_property, "flow retry", retry_policy=RetryPolicy(maximum_attempts=2)
    )


@behaviour("refused.push-workers")
async def test_a_push_worker_as_target_is_served_or_refused_by_name(
    bare_world: World, record_property: Note
) -> None:
    config = FlowConfig(worker_target=WorkerTarget(address="127.0.0.1:1"))
    await check_start(bare_world, record_property, "push workers", config_override=config)


@behaviour("refused.timeout-handler")
async def test_a_timeout_handler_is_served_or_refused_by_name(
    bare_world: World, record_property: Note
) -> None:
    script = Script()
    request = pb.StartFlowRequest(
        flow_id=script.flow_id,
        flow_type="Probe",
        request_id=script.flow_id,
        flow_timeout_seconds=30,
        flow_timeout_policy=pb.FLOW_TIMEOUT_POLICY_HANDLER,
        flow_start_options=pb.FlowStartOptions(
            timeout_handler_options=pb.FlowTimeoutHandlerOptions(method_timeout_seconds=5)
        ),
    )
    try:
        await bare_world.stub.StartFlow(request)
    except AioRpcError as refusal:
        check_refusal(refusal, "timeout")
        record_property(*REFUSED)


@behaviour("refused.time-travel")
async def test_time_travel_is_served_or_refused_by_name(
    world: World, record_property: Note
) -> None:
    script = Script()
    await world.start(script)
    await world.result(script)
    try:
        await world.client.time_travel(script.flow_id, TimeTravelOptions(TimeTravelType.BEGINNING))
    except DexServiceError as refusal:
        check_refusal(refusal, "ResetFlow")
        record_property(*REFUSED)


class Child(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return graceful_complete(input)


class ChildFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Child())


CHILD = ChildFlow()


class Parent(Step[str]):
    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        return Wait.until(SubFlow.run(CHILD, input))

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return graceful_complete(SubFlow.get_condition_results(context).single_output(str))


class ParentFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Parent())


@behaviour("refused.sub-flows")
async def test_a_wait_for_a_sub_flow_is_served_or_fails_its_flow_by_name_at_once(
    engine_address: str, tmp_path: Path, record_property: Note
) -> None:
    flows: list[Flow[Any]] = [ParentFlow(), CHILD]
    script = Script()
    async with open_world(engine_address, tmp_path, flows) as world, world.worker(flows=flows):
        await world.client.start_flow(flows[0], script.flow_id, "in")
        result = await world.result(script)
    if result.status is FlowStatus.FAILED:
        assert "SubFlow" in (result.error_message or "")
        record_property(*REFUSED)
    else:
        assert result.single_output(str) == "in"


@behaviour("refused.search-by-active-step")
async def test_a_search_by_active_steps_is_served_or_refused_by_name(
    bare_world: World, record_property: Note
) -> None:
    try:
        await bare_world.client.search_flows("ActiveStepTypes = 'Alpha'", page_size=1)
    except DexServiceError as refusal:
        check_refusal(refusal, "ActiveStepTypes")
        record_property(*REFUSED)


@behaviour("refused.attribute-stores")
async def test_an_attribute_store_is_served_or_refused_by_its_name(
    bare_world: World, record_property: Note
) -> None:
    script = Script()
    request = pb.StartFlowRequest(
        flow_id=script.flow_id,
        flow_type="Probe",
        request_id=script.flow_id,
        flow_start_options=pb.FlowStartOptions(
            flow_config_override=pb.FlowConfig(
                attribute_store_names=pb.AttributeStoreNames(names=["warehouse"])
            )
        ),
    )
    with pytest.raises(AioRpcError) as refusal:
        await bare_world.stub.StartFlow(request)
    assert refusal.value.code().name in ("INVALID_ARGUMENT", "UNIMPLEMENTED")
    assert "warehouse" in (refusal.value.details() or "")
    record_property(*REFUSED)
