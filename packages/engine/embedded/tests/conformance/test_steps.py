"""What a Step method is given, and what becomes of its attempts."""

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
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
    retry_after,
)
from engine_testing.probe import (
    BOXES,
    COUNT,
    EVENTS,
    INBOX,
    ITEMS,
    NOTE,
    OTHER,
    PROBE,
    Alpha,
    Beta,
    Rescue,
    Script,
    Waiter,
)
from engine_testing.world import World

behaviour = pytest.mark.behaviour
SECOND = timedelta(seconds=1)
ONCE = RetryPolicy(maximum_attempts=1)
QUICK = RetryPolicy(initial_interval=SECOND, maximum_attempts=5)


def first(options: StepOptions, step: type[Alpha] = Alpha, given: str = "in") -> Script:
    """A flow whose first Step goes to another with these options."""

    async def start(context: AsyncContext, _given: str) -> StepDecision:
        return go_to_many(StepMovement.of(step, given, options=options))

    return Script(execute={"Start": start})


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


@behaviour("steps.loads")
async def test_map_entries_arrive_only_when_the_movement_loads_them(world: World) -> None:
    seen: dict[str, object] = {}

    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "n")
        ITEMS.set(context, "a b/é"[:3], "one")
        ITEMS.set(context, "c", "two")
        INBOX.publish(context, "m")
        BOXES.publish(context, "x y", "b")
        return go_to_many(
            StepMovement.of(Alpha, "none", options=StepOptions()),
            StepMovement.of(
                Alpha,
                "exact",
                options=StepOptions(execute_load_attribute_map_instances=(ITEMS.load("c"),)),
            ),
            StepMovement.of(
                Alpha,
                "whole",
                options=StepOptions(
                    execute_load_attribute_maps=(ITEMS,),
                    execute_load_attribute_map_instances=(ITEMS.load("c"),),
                    execute_load_channels=(INBOX, OTHER),
                ),
            ),
        )

    async def look(context: AsyncContext, given: str) -> StepDecision:
        assert NOTE.get(context) == "n"
        assert INBOX.size(context) == 1
        assert BOXES.size(context, "x y") == 1
        assert BOXES.get_all_instance_keys(context) == ("x y",)
        if given == "none":
            with pytest.raises(Exception, match="load"):
                ITEMS.get(context, "c")
            seen[given] = True
        elif given == "exact":
            with pytest.raises(Exception, match="load"):
                ITEMS.get_all_instance_keys(context)
            seen[given] = ITEMS.get(context, "c")
        else:
            pending = [message.value for message in INBOX.pending_messages(context)]
            assert list(OTHER.pending_messages(context)) == []
            seen[given] = (sorted(ITEMS.get_all_instance_keys(context)), pending)
        return graceful_complete()

    script = Script(execute={"Start": start, "Alpha": look})
    await world.start(script)
    result = await world.result(script)
    assert result.status is FlowStatus.COMPLETED, result.error_message
    assert seen == {"none": True, "exact": "two", "whole": (["a b", "c"], ["m"])}


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


@behaviour("steps.attempt-timeout")
async def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again(world: World) -> None:
    cancelled: list[int] = []

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        if context.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(context.attempt)
                return graceful_complete("late")
        return graceful_complete(f"attempt {context.attempt}")

    options = StepOptions(execute_method_timeout=SECOND, execute_retry=QUICK)
    script = first(options)
    script.execute["Alpha"] = alpha
    await world.start(script)
    assert (await world.result(script)).single_output(str) == "attempt 2"
    assert cancelled == [1]


@behaviour("steps.timeout-text")
async def test_a_flow_that_fails_by_timeout_says_so(world: World) -> None:
    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        await asyncio.sleep(60)
        return dead_end()

    script = first(StepOptions(execute_method_timeout=SECOND, execute_retry=ONCE))
    script.execute["Alpha"] = alpha
    await world.start(script)
    result = await world.result(script)
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "timeout" in (result.error_message or "").lower()


@behaviour("steps.heartbeat-timeout")
async def test_silence_fails_an_attempt_and_heartbeats_or_stream_writes_do_not(
    world: World, heartbeat_timeout: timedelta
) -> None:
    beat = heartbeat_timeout.total_seconds() / 4

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        if given == "silent" and context.attempt == 1:
            await asyncio.sleep(600)
        for _ in range(8):
            if given == "beats":
                await context.heartbeat(1)
            elif given == "writes":
                EVENTS.write(context, "alive")
            await asyncio.sleep(beat if given != "silent" else 0)
        return graceful_complete(f"{given} {context.attempt}")

    scripts: list[Script] = []
    for given in ("silent", "beats", "writes"):
        options = StepOptions(heartbeat_timeout=heartbeat_timeout, execute_retry=QUICK)
        script = first(options, given=given)
        script.execute["Alpha"] = alpha
        await world.start(script)
        scripts.append(script)
    outputs = [(await world.result(script)).single_output(str) for script in scripts]
    assert outputs == ["silent 2", "beats 1", "writes 1"]


@behaviour("steps.heartbeat-value")
async def test_the_next_attempt_gets_the_last_heartbeat_value(world: World) -> None:
    seen: list[tuple[bool, object]] = []

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        value = (
            context.get_last_heartbeat_value(int) if context.has_last_heartbeat_value() else None
        )
        seen.append((context.has_last_heartbeat_value(), value))
        if context.attempt == 1:
            await context.heartbeat(41)
            await context.heartbeat(42)
            EVENTS.write(context, "keeps it")
        elif context.attempt == 2:
            await context.heartbeat()
        elif context.attempt == 3:
            await context.heartbeat(None)
        else:
            return graceful_complete()
        raise RuntimeError("again")

    script = first(StepOptions(execute_retry=RetryPolicy(SECOND, 1.0, maximum_attempts=5)))
    script.execute["Alpha"] = alpha
    await world.start(script)
    await world.result(script)
    assert seen == [(False, None), (True, 42), (False, None), (True, None)]


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
