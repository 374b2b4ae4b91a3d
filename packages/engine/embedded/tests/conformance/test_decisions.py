"""How flows go on and how they end."""

from __future__ import annotations

import asyncio

import pytest
from dex import (
    AsyncContext,
    Context,
    FlowErrorType,
    FlowStatus,
    RPCResult,
    StepDecision,
    StepMovement,
    Wait,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)
from engine_testing.probe import INBOX, PROBE, Alpha, Beta, Script, Waiter
from engine_testing.world import World, until

behaviour = pytest.mark.behaviour


async def fork(context: AsyncContext, given: str) -> StepDecision:
    return go_to_many(StepMovement.of(Alpha, "a"), StepMovement.of(Beta, "b"))


@behaviour("decisions.graceful")
async def test_graceful_completion_waits_for_other_branches_and_keeps_all_outputs(
    world: World,
) -> None:
    release = asyncio.Event()

    async def slow(context: AsyncContext, given: str) -> StepDecision:
        await release.wait()
        return graceful_complete("slow")

    script = Script(execute={"Start": fork, "Beta": slow})
    await world.start(script)
    await until(lambda: script.calls_of("Beta") and script.calls_of("Alpha"))
    assert (await world.client.describe_flow(script.flow_id)).status is FlowStatus.RUNNING
    release.set()
    result = await world.result(script)
    assert [done.decode(str) for done in result.completions] == ["a", "slow"]
    assert [done.step_execution_id for done in result.completions] == ["Alpha-1", "Beta-1"]


@behaviour("decisions.no-output")
async def test_a_completion_without_output_is_not_collected(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return graceful_complete()

    script = Script(execute={"Start": start})
    await world.start(script)
    result = await world.result(script)
    assert (result.status, result.completions) == (FlowStatus.COMPLETED, ())


@behaviour("decisions.force-complete")
async def test_forced_completion_ends_at_once_and_drops_late_results(world: World) -> None:
    cancelled = asyncio.Event()
    running = asyncio.Event()

    async def endless(context: AsyncContext, given: str) -> StepDecision:
        running.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return graceful_complete("late")

    async def quick(context: AsyncContext, given: str) -> StepDecision:
        await running.wait()
        return force_complete("done")

    script = Script(execute={"Start": fork, "Alpha": quick, "Beta": endless})
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "done"
    await asyncio.wait_for(cancelled.wait(), 10)


@behaviour("decisions.force-fail")
async def test_forced_failure_carries_its_reason(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return force_fail("out of stock")

    script = Script(execute={"Start": start})
    await world.start(script)
    result = await world.result(script)
    assert result.status is FlowStatus.FAILED
    assert result.error_type is FlowErrorType.STEP_DECISION_FAILED
    assert result.error_message == "out of stock"


@behaviour("decisions.dead-end")
async def test_a_dead_end_leaves_the_flow_running_and_an_rpc_can_add_steps(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return dead_end()

    async def change(context: Context, given: str) -> RPCResult[str]:
        return RPCResult("ok", next_steps=(StepMovement.of(Alpha, given),))

    script = Script(execute={"Start": start}, rpc={"change": change})
    await world.start(script)
    await until(lambda: script.calls_of("Start"))
    assert (await world.client.describe_flow(script.flow_id)).status is FlowStatus.RUNNING
    await world.call(PROBE.change, script.flow_id, "revived")
    assert (await world.result(script)).single_output(str) == "revived"
    assert script.calls_of("Alpha")[0].from_id == "__rpc/change"


@behaviour("decisions.conditional-complete")
@pytest.mark.parametrize(
    ("messages", "expected"), [(0, "empty"), (2, "more")], ids=["empty", "not empty"]
)
async def test_conditional_completion_depends_on_the_channel(
    world: World, messages: int, expected: str
) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        for _ in range(messages):
            INBOX.publish(context, "m")
        return force_complete_if_channels_empty("empty", StepMovement.of(Alpha, "more"), INBOX)

    script = Script(execute={"Start": start})
    await world.start(script)
    assert (await world.result(script)).single_output(str) == expected


@behaviour("decisions.conditional-complete-in-flight")
async def test_conditional_completion_counts_a_message_that_is_being_worked_on(
    world: World,
) -> None:
    working = asyncio.Event()
    release = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        INBOX.publish(context, "m")
        return go_to_many(StepMovement.of(Waiter, ""), StepMovement.of(Alpha, ""))

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.until(INBOX.for_one())

    async def work(context: AsyncContext, given: str) -> StepDecision:
        working.set()
        await release.wait()
        return graceful_complete("worked")

    async def check(context: AsyncContext, given: str) -> StepDecision:
        await working.wait()
        return force_complete_if_channels_empty("empty", StepMovement.of(Beta, "busy"), INBOX)

    script = Script(
        execute={"Start": start, "Waiter": work, "Alpha": check}, wait_for={"Waiter": wait}
    )
    await world.start(script)
    await until(lambda: script.calls_of("Beta"))
    release.set()
    result = await world.result(script)
    assert sorted(done.decode(str) for done in result.completions) == ["busy", "worked"]


@behaviour("decisions.cancel-by-type")
async def test_cancelling_by_type_hits_waiting_and_running_steps_but_not_the_next(
    world: World,
) -> None:
    cancelled = asyncio.Event()
    running = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(
            StepMovement.of(Alpha, "endless"),
            StepMovement.of(Waiter, ""),
            StepMovement.of(Beta, ""),
        )

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        if given == "next":
            return graceful_complete("next")
        running.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return graceful_complete("late")

    async def beta(context: AsyncContext, given: str) -> StepDecision:
        await running.wait()
        await until(lambda: script.calls_of("Waiter", "wait_for"))
        return go_to(Alpha, "next").with_canceling_steps(Alpha, Waiter)

    script = Script(execute={"Start": start, "Alpha": alpha, "Beta": beta})
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "next"
    await asyncio.wait_for(cancelled.wait(), 10)


@behaviour("decisions.fan-out")
async def test_a_fan_out_of_fifty_runs_each_movement_once(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(*(StepMovement.of(Alpha, str(number)) for number in range(50)))

    script = Script(execute={"Start": start})
    await world.start(script)
    result = await world.result(script)
    assert sorted(int(done.decode(str)) for done in result.completions) == list(range(50))
    assert len(script.calls_of("Alpha")) == 50
