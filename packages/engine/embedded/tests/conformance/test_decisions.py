"""How flows go on and how they end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from dex import (
    AsyncContext,
    Context,
    FlowErrorType,
    FlowStatus,
    RPCResult,
    StepDecision,
    StepExecutionId,
    StepMovement,
    Wait,
    WaitForStepCompletionOptions,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)
from engine_testing.probe import INBOX, PROBE, Alpha, Beta, Rescue, Script, Waiter
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
@pytest.mark.parametrize("decision", [graceful_complete(), graceful_complete(None)])
async def test_a_completion_without_output_or_with_null_is_not_collected(
    world: World, decision: StepDecision
) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return decision

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


@behaviour("decisions.conditional-complete-late-message")
async def test_conditional_completion_counts_a_message_that_came_while_the_step_ran(
    world: World,
) -> None:
    running = asyncio.Event()
    published = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        assert INBOX.size(context) == 0
        running.set()
        await published.wait()
        return force_complete_if_channels_empty("empty", StepMovement.of(Alpha, "more"), INBOX)

    script = Script(execute={"Start": start})
    await world.start(script)
    await running.wait()
    await world.call(PROBE.send, script.flow_id, "m")
    published.set()
    assert (await world.result(script)).single_output(str) == "more"


@behaviour("decisions.cancel-queued")
async def test_cancelling_by_type_hits_steps_that_no_worker_has_taken_yet(
    bare_world: World,
) -> None:
    running = asyncio.Event()
    release = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        running.set()
        await release.wait()
        return graceful_complete("done")

    async def change(context: Context, given: str) -> RPCResult[str]:
        if given == "cancel":
            return RPCResult("").with_canceling_steps(Beta)
        return RPCResult("", next_steps=tuple(StepMovement.of(Beta, "never") for _ in range(3)))

    script = Script(execute={"Start": start}, rpc={"change": change})
    # One Step at a time, and an RPC beside it.
    async with bare_world.worker(max_tasks=2, reserved_rpcs=1):
        await bare_world.start(script)
        await running.wait()
        await bare_world.call(PROBE.change, script.flow_id, "add")
        await bare_world.call(PROBE.change, script.flow_id, "cancel")
        await bare_world.client.wait_for_step_completion(
            script.flow_id,
            StepExecutionId("Beta", 3),
            WaitForStepCompletionOptions(request_timeout=timedelta(seconds=20)),
        )
        release.set()
        assert (await bare_world.result(script)).single_output(str) == "done"
    assert not script.calls_of("Beta")


@behaviour("decisions.cancel-siblings")
async def test_cancelling_siblings_spares_steps_of_another_origin(world: World) -> None:
    cancelled: list[str] = []
    both = asyncio.Event()
    release = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(StepMovement.of(Alpha, "cousin"), StepMovement.of(Rescue, ""))

    async def rescue(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(StepMovement.of(Alpha, "sibling"), StepMovement.of(Beta, ""))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        if len(script.calls_of("Alpha")) == 2:
            both.set()
        try:
            await release.wait()
        except asyncio.CancelledError:
            cancelled.append(given)
            raise
        return graceful_complete(given)

    async def beta(context: AsyncContext, given: str) -> StepDecision:
        await both.wait()
        return graceful_complete("beta").with_canceling_sibling_steps(Alpha)

    script = Script(execute={"Start": start, "Rescue": rescue, "Alpha": alpha, "Beta": beta})
    await world.start(script)
    await until(lambda: cancelled)
    release.set()
    result = await world.result(script)
    assert sorted(done.decode(str) for done in result.completions) == ["beta", "cousin"]
    assert cancelled == ["sibling"]


@behaviour("decisions.cancel-nothing")
async def test_cancelling_a_type_that_is_not_there_does_nothing(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Beta, "on").with_canceling_steps(Alpha).with_canceling_sibling_steps(Waiter)

    script = Script(execute={"Start": start})
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "on"


@behaviour("decisions.fan-out")
async def test_a_fan_out_of_fifty_runs_each_movement_once(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(*(StepMovement.of(Alpha, str(number)) for number in range(50)))

    script = Script(execute={"Start": start})
    await world.start(script)
    result = await world.result(script)
    assert sorted(int(done.decode(str)) for done in result.completions) == list(range(50))
    assert len(script.calls_of("Alpha")) == 50
