"""Stopping flows and waiting for them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from dex import (
    AsyncContext,
    Attribute,
    AttributeIndex,
    Flow,
    FlowErrorType,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    IndexType,
    LongPollTimeoutError,
    PersistenceSchema,
    RequestTimeoutError,
    StepDecision,
    StepExecutionId,
    StepList,
    StopFlowOptions,
    StopType,
    WaitForStepCompletionOptions,
    go_to,
    graceful_complete,
)
from engine_testing.probe import Script, Start, Waiter
from engine_testing.world import World, until
from google.protobuf.empty_pb2 import Empty

behaviour = pytest.mark.behaviour


class Endless:
    """A flow whose first Step runs until it is cancelled."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.script = Script(execute={"Start": self._start})

    async def _start(self, context: AsyncContext, given: str) -> StepDecision:
        self.running.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return graceful_complete("late")


@behaviour("stop.types")
@pytest.mark.parametrize(
    ("stop_type", "status", "error_type"),
    [
        (StopType.CANCEL, FlowStatus.CANCELED, None),
        (StopType.TERMINATE, FlowStatus.TERMINATED, None),
        (StopType.FAIL, FlowStatus.FAILED, FlowErrorType.CLIENT_API_FAILED),
    ],
)
async def test_a_stop_closes_the_flow_and_cancels_what_runs(
    world: World, stop_type: StopType, status: FlowStatus, error_type: FlowErrorType | None
) -> None:
    endless = Endless()
    flow_id = endless.script.flow_id
    await world.start(endless.script)
    await endless.running.wait()
    await world.client.stop_flow(flow_id, StopFlowOptions(type=stop_type, reason="enough"))
    result = await world.result(endless.script)
    assert (result.status, result.error_type) == (status, error_type)
    if stop_type is StopType.FAIL:
        assert result.error_message == "enough"
    await asyncio.wait_for(endless.cancelled.wait(), 10)
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await world.client.stop_flow(flow_id)
    assert (await world.client.describe_flow(flow_id)).status is status


@behaviour("stop.waiting-flow")
async def test_a_stop_ends_a_wait(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, given)

    script = Script(execute={"Start": start})
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    await world.client.stop_flow(script.flow_id)
    assert (await world.result(script)).status is FlowStatus.CANCELED
    assert not script.calls_of("Waiter")


@behaviour("waits.flow")
async def test_a_wait_for_a_flow_times_out_while_it_runs_and_knows_unknown_ones(
    world: World,
) -> None:
    endless = Endless()
    await world.start(endless.script)
    with pytest.raises(LongPollTimeoutError):
        await world.result(endless.script, seconds=1)
    waiting = asyncio.create_task(world.result(endless.script))
    await endless.running.wait()
    await world.client.stop_flow(endless.script.flow_id)
    assert (await waiting).status is FlowStatus.CANCELED
    with pytest.raises(FlowNotFoundError):
        await world.client.wait_for_flow("no-such-flow", timeout=timedelta(seconds=1))


@behaviour("waits.step-completion")
async def test_a_wait_for_a_step_ends_when_that_execution_is_over(world: World) -> None:
    release = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        await release.wait()
        return go_to(Waiter, "")

    script = Script(execute={"Start": start})
    await world.start(script)
    options = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=20))
    first = asyncio.create_task(
        world.client.wait_for_step_completion(script.flow_id, StepExecutionId("Start"), options)
    )
    hopeless = asyncio.create_task(
        world.client.wait_for_step_completion(script.flow_id, StepExecutionId("Alpha", 3), options)
    )
    await until(lambda: script.calls_of("Start"))
    assert not first.done()
    release.set()
    await first
    await world.client.stop_flow(script.flow_id)
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await hopeless


@behaviour("server.health")
async def test_the_server_is_healthy(world: World) -> None:
    assert await world.client.health_check()


@behaviour("server.protocol")
async def test_the_server_speaks_a_protocol_version_that_clients_know(world: World) -> None:
    info = await world.stub.GetServerInfo(Empty())
    assert 1 <= info.minimum_supported_protocol_version <= info.current_protocol_version
    assert info.minimum_supported_protocol_version <= 3


class Renamed(Flow[str]):
    """A flow that indexes the probe's key as a number."""

    status: Attribute[int] = Attribute(
        "Status", int, index=AttributeIndex(IndexType.INT, "ProbeStatus")
    )

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Start())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(self.status)


@behaviour("server.index-conflict")
async def test_a_worker_that_declares_a_known_index_key_with_another_type_cannot_start(
    world: World,
) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="Attribute indexes"):
            async with world.worker(flows=[Renamed()]):
                pass


@behaviour("waits.request-budget")
async def test_a_wait_ends_when_the_callers_own_budget_is_over(world: World) -> None:
    endless = Endless()
    await world.start(endless.script)
    with pytest.raises(RequestTimeoutError):
        await world.client.wait_for_step_completion(
            endless.script.flow_id,
            StepExecutionId("Start"),
            WaitForStepCompletionOptions(request_timeout=timedelta(seconds=1)),
        )
    await world.client.stop_flow(endless.script.flow_id)
