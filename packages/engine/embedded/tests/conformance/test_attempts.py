"""The attempts of a Step method: what each sees, when the next comes, and which is the last."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from dex import (
    AsyncContext,
    Context,
    FlowErrorType,
    FlowStatus,
    RetryPolicy,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
    retry_after,
)
from engine_testing.one_step import QUICK, SECOND, first
from engine_testing.probe import COUNT, INBOX, NOTE, PROBE, Beta, Script, Waiter
from engine_testing.world import World

behaviour = pytest.mark.behaviour


@behaviour("steps.retries-see-first-snapshot")
async def test_a_retry_sees_the_snapshot_of_the_first_attempt(world: World) -> None:
    seen: list[tuple[int, str]] = []
    failing = asyncio.Event()
    changed = asyncio.Event()

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        seen.append((context.attempt, NOTE.get(context)))
        if context.attempt == 1:
            failing.set()
            await changed.wait()
            raise RuntimeError("once")
        return go_to(Beta, "")

    async def beta(context: AsyncContext, given: str) -> StepDecision:
        seen.append((context.attempt, NOTE.get(context)))
        return graceful_complete()

    async def change(context: Context, given: str) -> RPCResult[str]:
        NOTE.set(context, given)
        return RPCResult(given)

    script = first(StepOptions(execute_retry=QUICK))
    script.execute.update(Alpha=alpha, Beta=beta)
    script.rpc["change"] = change
    await world.start(script)
    await failing.wait()
    await world.call(PROBE.change, script.flow_id, "new")
    changed.set()
    await world.result(script)
    assert seen == [(1, None), (2, None), (1, "new")]


@behaviour("steps.failed-attempts-apply-nothing")
async def test_what_a_failed_attempt_wrote_is_never_seen(world: World) -> None:
    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        COUNT.set(context, context.attempt)
        INBOX.publish(context, f"attempt {context.attempt}")
        if context.attempt == 1:
            raise RuntimeError("once")
        return go_to(Beta, "")

    async def beta(context: AsyncContext, given: str) -> StepDecision:
        return graceful_complete(f"{COUNT.get(context)} {INBOX.size(context)}")

    script = first(StepOptions(execute_retry=QUICK))
    script.execute.update(Alpha=alpha, Beta=beta)
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "2 1"


@behaviour("steps.attempt-numbers")
async def test_attempts_count_up_and_share_the_time_of_the_first(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        options = StepOptions(wait_for_retry=QUICK, execute_retry=QUICK)
        return go_to_many(StepMovement.of(Waiter, "", options=options))

    async def wait(context: AsyncContext, given: str) -> Wait:
        if context.attempt < 2:
            raise RuntimeError("not yet")
        return Wait.skip_immediately()

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        if context.attempt < 3:
            raise RuntimeError("not yet")
        return graceful_complete()

    script = Script(execute={"Start": start, "Waiter": execute}, wait_for={"Waiter": wait})
    await world.start(script)
    await world.result(script)
    assert [call.attempt for call in script.calls_of("Waiter", "wait_for")] == [1, 2]
    executes = script.calls_of("Waiter")
    assert [call.attempt for call in executes] == [1, 2, 3]
    assert len({call.first_attempt_at for call in executes}) == 1


@behaviour("steps.default-back-off")
async def test_without_a_policy_the_wait_before_each_attempt_doubles_from_one_second(
    world: World,
) -> None:
    times: list[float] = []

    async def start(context: AsyncContext, given: str) -> StepDecision:
        times.append(asyncio.get_running_loop().time())
        if context.attempt < 3:
            raise RuntimeError("not yet")
        return graceful_complete()

    script = Script(execute={"Start": start})
    await world.start(script)
    assert (await world.result(script)).status is FlowStatus.COMPLETED
    assert times[1] - times[0] >= 0.9
    assert times[2] - times[1] >= 1.9


@behaviour("steps.retry-after")
async def test_retry_after_replaces_one_interval(world: World) -> None:
    times: list[float] = []

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        times.append(asyncio.get_running_loop().time())
        if context.attempt == 1:
            raise retry_after(1, RuntimeError("busy"))
        return graceful_complete()

    policy = RetryPolicy(initial_interval=timedelta(seconds=100), maximum_attempts=2)
    script = first(StepOptions(execute_retry=policy))
    script.execute["Alpha"] = alpha
    await world.start(script)
    await world.result(script)
    assert times[1] - times[0] >= 0.9


@behaviour("steps.maximum-attempts")
async def test_exhausted_attempts_fail_the_flow_with_the_workers_words(world: World) -> None:
    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        raise RuntimeError("the pump is dry")

    script = first(StepOptions(execute_retry=RetryPolicy(SECOND, maximum_attempts=2)))
    script.execute["Alpha"] = alpha
    await world.start(script)
    result = await world.result(script)
    assert result.status is FlowStatus.FAILED
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "the pump is dry" in (result.error_message or "")
    assert len(script.calls_of("Alpha")) == 2


@behaviour("steps.total-duration")
async def test_the_total_duration_ends_retries_although_attempts_remain(world: World) -> None:
    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        raise RuntimeError("no")

    policy = RetryPolicy(initial_interval=SECOND, total_duration=timedelta(seconds=2))
    script = first(StepOptions(execute_retry=policy))
    script.execute["Alpha"] = alpha
    await world.start(script)
    assert (await world.result(script)).status is FlowStatus.FAILED
    assert 1 <= len(script.calls_of("Alpha")) <= 2
