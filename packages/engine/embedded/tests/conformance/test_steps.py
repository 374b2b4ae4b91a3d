"""What a Step method is given, and what becomes of its attempts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from dex import (
    AsyncContext,
    AttributeMapNotLoadedError,
    ChannelMessagesNotLoadedError,
    Context,
    FlowErrorType,
    FlowStatus,
    RetryPolicy,
    RPCResult,
    StepDecision,
    StepDurability,
    StepMovement,
    StepOptions,
    Wait,
    WaitForFailurePolicy,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
    retry_after,
)
from dex.dexpb import dex_pb2 as pb
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
    Loader,
    Rescue,
    Script,
    Waiter,
)
from engine_testing.raw_worker import Frame, raw_stream, start_raw_flow
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


async def look_with(
    world: World, options: StepOptions, look: Callable[[AsyncContext], object]
) -> object:
    """What a Step with these options sees of a flow that has a bit of everything."""
    seen: list[object] = []

    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "n")
        ITEMS.set(context, "a b", "one")
        ITEMS.set(context, "c", "two")
        INBOX.publish(context, "m")
        BOXES.publish(context, "x y", "b")
        return go_to_many(StepMovement.of(Alpha, "", options=options))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        seen.append(look(context))
        return graceful_complete()

    script = Script(execute={"Start": start, "Alpha": alpha})
    await world.start(script)
    result = await world.result(script)
    assert result.status is FlowStatus.COMPLETED, result.error_message
    return seen[0]


@behaviour("loads.attributes")
async def test_ordinary_attributes_always_arrive_and_map_entries_only_when_loaded(
    world: World,
) -> None:
    def look(context: AsyncContext) -> object:
        with pytest.raises(AttributeMapNotLoadedError):
            ITEMS.get(context, "c")
        return NOTE.get(context)

    assert await look_with(world, StepOptions(), look) == "n"

    def look_at_all(context: AsyncContext) -> object:
        return {key: ITEMS.get(context, key) for key in ITEMS.get_all_instance_keys(context)}

    whole = StepOptions(execute_load_attribute_maps=(ITEMS,))
    assert await look_with(world, whole, look_at_all) == {"a b": "one", "c": "two"}


@behaviour("loads.exact-instance")
async def test_loading_one_entry_of_a_map_brings_no_other(world: World) -> None:
    def look(context: AsyncContext) -> object:
        with pytest.raises(AttributeMapNotLoadedError):
            ITEMS.get(context, "a b")
        with pytest.raises(AttributeMapNotLoadedError):
            ITEMS.get_all_instance_keys(context)
        return ITEMS.get(context, "c"), ITEMS.get(context, "none")

    loads = (ITEMS.load("c"), ITEMS.load("none"))
    options = StepOptions(execute_load_attribute_map_instances=loads)
    assert await look_with(world, options, look) == ("two", None)


@behaviour("loads.channel-sizes")
async def test_sizes_of_channels_arrive_although_nothing_is_loaded(world: World) -> None:
    def look(context: AsyncContext) -> object:
        with pytest.raises(ChannelMessagesNotLoadedError):
            INBOX.pending_messages(context)
        keys = BOXES.get_all_instance_keys(context)
        return INBOX.size(context), OTHER.size(context), keys, BOXES.size(context, "x y")

    assert await look_with(world, StepOptions(), look) == (1, 0, ("x y",), 1)


@behaviour("loads.empty-channel")
async def test_a_loaded_channel_without_messages_is_an_empty_list(world: World) -> None:
    def look(context: AsyncContext) -> object:
        pending = [message.value for message in INBOX.pending_messages(context)]
        return pending, list(OTHER.pending_messages(context))

    options = StepOptions(execute_load_channels=(INBOX, OTHER))
    assert await look_with(world, options, look) == (["m"], [])


@behaviour("loads.options-of-a-movement")
async def test_the_options_of_a_movement_replace_the_registered_loads_for_it_alone(
    world: World,
) -> None:
    loaded: list[bool] = []

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(StepMovement.of(Loader, "again", options=StepOptions()))

    async def load(context: AsyncContext, given: str) -> StepDecision:
        try:
            ITEMS.get_all_instance_keys(context)
        except AttributeMapNotLoadedError:
            loaded.append(False)
        else:
            loaded.append(True)
        return go_to(Loader, "") if given else graceful_complete()

    script = Script(execute={"Start": start, "Loader": load})
    await world.start(script)
    assert (await world.result(script)).status is FlowStatus.COMPLETED
    assert loaded == [False, True]


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


@behaviour("steps.pongs-are-no-heartbeats")
async def test_pongs_of_a_worker_do_not_keep_a_silent_attempt_alive(
    world: World, heartbeat_timeout: timedelta
) -> None:
    flow_type = f"Silent {uuid.uuid4().hex[:8]}"
    options = pb.StepOptions(heartbeat_timeout_seconds=int(heartbeat_timeout.total_seconds()))
    async with raw_stream(world.address, flow_type) as stream:
        await start_raw_flow(world.stub, flow_type, options=options)
        task = await stream.read_task()

        async def keep_ponging() -> None:
            while True:
                await stream.send(Frame(pong=pb.PollWorkerTaskPong()))
                await asyncio.sleep(heartbeat_timeout.total_seconds() / 10)

        ponging = asyncio.create_task(keep_ponging())
        async with asyncio.timeout(60):
            frame = await stream.read()
        ponging.cancel()
        assert frame is not None
        assert frame.cancel_task.task_id == task.task_id


@behaviour("steps.late-result")
async def test_a_result_that_comes_after_its_cancellation_is_ignored(world: World) -> None:
    flow_type = f"Late {uuid.uuid4().hex[:8]}"
    options = pb.StepOptions(execute_timeout_seconds=1)
    async with raw_stream(world.address, flow_type) as stream:
        flow_id = await start_raw_flow(world.stub, flow_type, options=options)
        first = await stream.read_task()
        async with asyncio.timeout(60):
            frame = await stream.read()
        assert frame is not None
        assert frame.cancel_task.task_id == first.task_id
        await stream.execute_done(first.task_id, output=pb.Value(string_value="late"))
        async with asyncio.timeout(60):
            second = await stream.read_task()
        assert second.execute.context.attempt == 2
        await stream.execute_done(second.task_id, output=pb.Value(string_value="in time"))
        result = await world.stub.WaitForFlow(
            pb.WaitForFlowRequest(flow_id=flow_id, needs_results=True, wait_time_seconds=20)
        )
    outputs = [entry.completed_step_output.string_value for entry in result.results]
    assert outputs == ["in time"]


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
