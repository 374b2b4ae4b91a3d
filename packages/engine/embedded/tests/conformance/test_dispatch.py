"""How tasks find workers."""

# The SDK takes asynchronous handlers; its base class is typed for synchronous ones.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import asyncio

import pytest
from dex import (
    AsyncContext,
    Flow,
    FlowStatus,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import PROBE, Alpha, Script, Waiter
from engine_testing.world import World, running_worker

behaviour = pytest.mark.behaviour


@behaviour("dispatch.waits-for-a-worker")
async def test_a_step_waits_for_a_worker_without_using_an_attempt(bare_world: World) -> None:
    script = Script()
    await bare_world.start(script, "x")
    async with bare_world.worker():
        assert (await bare_world.result(script)).single_output(str) == "x"
    assert [call.attempt for call in script.calls] == [1]


@behaviour("dispatch.serves")
async def test_a_pull_worker_registers_its_queues_and_serves_waits_executes_and_rpcs(
    bare_world: World,
) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(StepMovement.of(Waiter, given))

    script = Script(execute={"Start": start})
    async with bare_world.worker() as worker:
        queues = worker.pull_registration_state().queues
        assert "Probe" in {queue.queue for queue in queues}
        assert len(queues) == 2
        assert worker.pull_registration_state().is_ready
        await bare_world.start(script, "x")
        await bare_world.call(PROBE.send, script.flow_id, "m")
        assert (await bare_world.result(script)).single_output(str) == "x"
    assert [call.method for call in script.calls_of("Waiter", "wait_for")] == ["wait_for"]


@behaviour("dispatch.sticky")
async def test_a_flow_stays_with_the_worker_that_served_it_last_while_that_is_free(
    bare_world: World,
) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        left = int(given)
        return go_to_many(StepMovement.of(Alpha, str(left - 1))) if left else graceful_complete()

    script = Script(execute={"Start": start, "Alpha": start})
    async with bare_world.worker(), bare_world.worker():
        await bare_world.start(script, "6")
        await bare_world.result(script)
    reply = await bare_world.stub.GetHistoryEvents(
        pb.GetHistoryEventsRequest(flow_id=script.flow_id)
    )
    workers = {
        event.step_execute_completed.context.pull_routing.served_by_app_worker_id
        for event in reply.events
        if event.HasField("step_execute_completed")
    }
    assert len(workers) == 1


@behaviour("dispatch.no-capacity")
async def test_a_declined_task_keeps_its_attempt_and_runs_when_a_slot_is_free(
    bare_world: World,
) -> None:
    running = 0
    peak = 0

    async def start(context: AsyncContext, given: str) -> StepDecision:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.05)
        running -= 1
        return graceful_complete()

    scripts = [Script(execute={"Start": start}) for _ in range(20)]
    async with bare_world.worker(max_tasks=3, reserved_rpcs=1):
        await asyncio.gather(*(bare_world.start(script) for script in scripts))
        for script in scripts:
            await bare_world.result(script)
    assert peak <= 2
    assert {call.attempt for script in scripts for call in script.calls} == {1}


@behaviour("dispatch.burst")
async def test_a_burst_of_instant_tasks_runs_each_exactly_once(bare_world: World) -> None:
    scripts = [Script() for _ in range(300)]
    async with bare_world.worker(max_tasks=8):
        await asyncio.gather(*(bare_world.start(script) for script in scripts))
        for script in scripts:
            await bare_world.result(script)
    assert [len(script.calls) for script in scripts] == [1] * 300


class Unknown(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return graceful_complete(input)


class OldProbe(Flow[str]):
    """A Probe of another release: same type, other Steps."""

    def get_flow_type(self) -> str:
        return PROBE.get_flow_type()

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Unknown())


@behaviour("dispatch.unknown-step")
async def test_a_worker_that_does_not_know_a_step_passes_it_to_one_that_does(
    bare_world: World,
) -> None:
    script = Script()
    async with running_worker(bare_world.address, bare_world.cache, [OldProbe()]):
        await bare_world.start(script, "x")
        async with bare_world.worker():
            assert (await bare_world.result(script)).single_output(str) == "x"
    assert [call.attempt for call in script.calls] == [1]


@behaviour("dispatch.idle-stop")
async def test_an_idle_worker_stops_at_once(bare_world: World) -> None:
    async with asyncio.timeout(15), bare_world.worker() as worker:
        async with asyncio.timeout(3):
            await worker.stop()


@behaviour("dispatch.single-attempt-burst")
async def test_single_attempt_steps_in_a_burst_are_never_taken_for_lost(
    bare_world: World,
) -> None:
    once = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(*(StepMovement.of(Alpha, str(n), options=once) for n in range(4)))

    scripts = [Script(execute={"Start": start}) for _ in range(40)]
    async with bare_world.worker(max_tasks=32):
        await asyncio.gather(*(bare_world.start(script) for script in scripts))
        results = [await bare_world.result(script, seconds=60) for script in scripts]
    assert {result.status for result in results} == {FlowStatus.COMPLETED}
    assert [len(script.calls_of("Alpha")) for script in scripts] == [4] * 40
