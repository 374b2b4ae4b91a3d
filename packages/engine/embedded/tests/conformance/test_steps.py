"""How Steps follow one another, and where a failure leads."""

from __future__ import annotations

import asyncio

import pytest
from dex import (
    AsyncContext,
    StepDecision,
    StepDurability,
    StepMovement,
    StepOptions,
    Wait,
    WaitForFailurePolicy,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.one_step import ONCE, QUICK, first
from engine_testing.probe import COUNT, NOTE, Alpha, Beta, Rescue, Script, Waiter
from engine_testing.world import World

behaviour = pytest.mark.behaviour


@behaviour("steps.ids-count-per-type")
async def test_execution_ids_count_per_type_and_name_their_origin(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(
            StepMovement.of(Alpha, "1"), StepMovement.of(Alpha, "2"), StepMovement.of(Beta, "3")
        )

    script = Script(execute={"Start": start})
    await world.start(script)
    await world.result(script)
    assert {call.step for call in script.calls} == {"Start-1", "Alpha-1", "Alpha-2", "Beta-1"}
    assert script.calls_of("Start")[0].from_id in ("__start__", "")
    assert {call.from_id for call in script.calls if call.step != "Start-1"} == {"Start-1"}
    given = {call.step: call.input for call in script.calls}
    assert (given["Alpha-1"], given["Alpha-2"], given["Beta-1"]) == ("1", "2", "3")


@behaviour("steps.parallel-movements")
async def test_parallel_movements_run_at_the_same_time(world: World) -> None:
    together = asyncio.Barrier(2)

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(StepMovement.of(Alpha, "1"), StepMovement.of(Beta, "2"))

    async def meet(context: AsyncContext, given: str) -> StepDecision:
        async with asyncio.timeout(10):
            await together.wait()
        return graceful_complete(given)

    script = Script(execute={"Start": start, "Alpha": meet, "Beta": meet})
    await world.start(script)
    result = await world.result(script)
    assert sorted(done.decode(str) for done in result.completions) == ["1", "2"]


@behaviour("steps.wait-without-conditions")
async def test_a_wait_that_skips_runs_execute_at_once(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, given)

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.skip_immediately()

    script = Script(execute={"Start": start}, wait_for={"Waiter": wait})
    await world.start(script, "x")
    assert (await world.result(script)).single_output(str) == "x"
    assert [call.method for call in script.calls] == ["execute", "wait_for", "execute"]


@behaviour("steps.no-wait-no-results")
async def test_a_step_without_a_wait_gets_no_condition_results_and_an_empty_wait_empty_ones(
    world: World,
) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, given)

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.skip_immediately()

    script = Script(execute={"Start": start}, wait_for={"Waiter": wait})
    await world.start(script)
    await world.result(script)
    events = await executed(world, script)
    assert not events["Start-1"].input.HasField("condition_results")
    assert events["Waiter-1"].input.HasField("condition_results")
    assert events["Waiter-1"].input.condition_results == pb.ConditionResults()


async def executed(world: World, script: Script) -> dict[str, pb.StepExecuteCompletedEvent]:
    """What history tells of the Execute methods that completed, by execution id."""
    reply = await world.stub.GetHistoryEvents(pb.GetHistoryEventsRequest(flow_id=script.flow_id))
    events = [event.step_execute_completed for event in reply.events]
    return {event.context.step_execution_id: event for event in events}


@behaviour("steps.failure-route")
async def test_a_failure_route_gets_the_input_and_the_error(world: World) -> None:
    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "never")
        raise KeyError("lost")

    async def rescue(context: AsyncContext, given: str) -> StepDecision:
        assert NOTE.get(context) is None
        return graceful_complete(given)

    script = first(StepOptions(execute_retry=ONCE).on_execute_failure_proceed_to(Rescue))
    script.execute.update(Alpha=alpha, Rescue=rescue)
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "in"
    call = script.calls_of("Rescue")[0]
    assert call.from_id == "Alpha-1"
    assert call.recovery_error is not None
    assert "lost" in call.recovery_error.detail
    assert call.recovery_error.error_type.endswith("KeyError")


@behaviour("steps.unencodable-result")
async def test_a_result_that_cannot_be_encoded_fails_the_attempt_and_takes_its_route(
    world: World,
) -> None:
    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        return graceful_complete(object())

    script = first(StepOptions(execute_retry=ONCE).on_execute_failure_proceed_to(Rescue))
    script.execute["Alpha"] = alpha
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "in"
    assert len(script.calls_of("Alpha")) == 1


@behaviour("steps.lock-waits")
async def test_a_step_waits_for_a_lock_and_then_sees_what_its_holder_wrote(world: World) -> None:
    holding = asyncio.Event()
    release = asyncio.Event()
    options = StepOptions(execute_lock_attributes=(COUNT.lock(),), execute_retry=QUICK)

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(
            StepMovement.of(Alpha, "", options=options), StepMovement.of(Beta, "", options=options)
        )

    async def work(context: AsyncContext, given: str) -> StepDecision:
        holding.set()
        await release.wait()
        COUNT.set(context, COUNT.get(context) + 1)
        return graceful_complete(COUNT.get(context))

    script = Script(execute={"Start": start, "Alpha": work, "Beta": work})
    await world.start(script)
    await holding.wait()
    release.set()
    result = await world.result(script)
    assert sorted(done.decode(int) for done in result.completions) == [1, 2]


@behaviour("steps.wait-failure")
async def test_a_failed_wait_may_proceed_to_execute_which_is_told(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        options = StepOptions(wait_for_retry=ONCE, wait_for_failure=WaitForFailurePolicy.PROCEED)
        return go_to_many(StepMovement.of(Waiter, "in", options=options))

    async def wait(context: AsyncContext, given: str) -> Wait:
        NOTE.set(context, "never")
        raise KeyError("no wait")

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        assert context.recovery_error is not None
        failed = context.wait_for_method_failed()
        return graceful_complete(f"{given} {failed} {NOTE.get(context)}")

    script = Script(execute={"Start": start, "Waiter": execute}, wait_for={"Waiter": wait})
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "in True None"


@behaviour("steps.locals")
async def test_a_local_of_the_wait_reaches_execute_on_every_attempt(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        options = StepOptions(execute_retry=QUICK)
        return go_to_many(StepMovement.of(Waiter, "", options=options))

    async def wait(context: AsyncContext, given: str) -> Wait:
        context.set_step_execution_local("kept", "from the wait")
        return Wait.skip_immediately()

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        local = context.get_step_execution_local("kept", str)
        if context.attempt == 1:
            raise RuntimeError("once")
        return graceful_complete(local)

    script = Script(execute={"Start": start, "Waiter": execute}, wait_for={"Waiter": wait})
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "from the wait"


@behaviour("steps.async-durability")
async def test_asynchronous_durability_gives_the_same_result_and_shows_in_history(
    world: World,
) -> None:
    script = first(StepOptions(execute_durability=StepDurability.ASYNC))
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "in"
    event = (await executed(world, script))["Alpha-1"]
    assert event.context.durability == pb.STEP_DURABILITY_ASYNC
