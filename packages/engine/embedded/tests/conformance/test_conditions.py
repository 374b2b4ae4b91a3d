"""Waiting: which conditions win, and what they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from dex import (
    AsyncContext,
    ConditionCombination,
    Context,
    DexServiceError,
    RPCResult,
    StepDecision,
    StepExecutionId,
    StepMovement,
    Timer,
    TimerId,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.condition import Condition
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import BOXES, INBOX, OTHER, PROBE, Execute, Script, Waiter, Watcher
from engine_testing.world import World, until

behaviour = pytest.mark.behaviour


def waiting(
    wait: Callable[[], Wait],
    *,
    before: Sequence[str] = (),
    report: Callable[[AsyncContext], str] = lambda context: ",".join(INBOX.results(context)),
) -> Script:
    """A flow that publishes `before` to its inbox, waits, and completes with a report."""

    async def start(context: AsyncContext, given: str) -> StepDecision:
        for message in before:
            INBOX.publish(context, message)
        return go_to(Waiter, given)

    async def wait_for(context: AsyncContext, given: str) -> Wait:
        return wait()

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        return graceful_complete(f"{report(context)}|{INBOX.size(context)}")

    return Script(execute={"Start": start, "Waiter": execute}, wait_for={"Waiter": wait_for})


async def outcome(world: World, script: Script) -> str:
    await world.start(script)
    return (await world.result(script)).single_output(str)


def seconds(count: int) -> timedelta:
    return timedelta(seconds=count)


@behaviour("conditions.earlier-messages-count")
async def test_messages_published_before_the_wait_satisfy_it(world: World) -> None:
    script = waiting(lambda: Wait.until(INBOX.for_one()), before="abc")
    assert await outcome(world, script) == "a|2"


@behaviour("conditions.for-one")
async def test_one_message_is_the_oldest_and_the_rest_stays_in_order(world: World) -> None:
    script = waiting(lambda: Wait.until(INBOX.for_one()), before="abc")
    script.execute["Waiter"], taken = again(2)
    await world.start(script)
    await world.result(script)
    assert taken == ["a", "b", "c"]


def again(times: int) -> tuple[Execute, list[str]]:
    """An Execute that notes what its wait took, and waits that often again."""
    taken: list[str] = []

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        taken.extend(INBOX.results(context))
        return go_to(Waiter, "") if len(taken) <= times else graceful_complete()

    return execute, taken


@behaviour("conditions.at-least-waits")
async def test_at_least_two_waits_for_the_second_message(world: World) -> None:
    script = waiting(lambda: Wait.until(INBOX.at_least(2)), before="a")
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    await until(lambda: waits(world, script))
    assert not script.calls_of("Waiter")
    await world.call(PROBE.send, script.flow_id, "b")
    assert (await world.result(script)).single_output(str) == "a,b|0"


async def state_of(world: World, script: Script) -> pb.GetFlowStateResponse:
    return await world.stub.GetFlowState(pb.GetFlowStateRequest(flow_id=script.flow_id))


async def waits(world: World, script: Script) -> bool:
    """Whether the only active execution of the flow is in its wait."""
    active = (await state_of(world, script)).active_step_executions
    return bool(active) and active[0].phase == pb.ACTIVE_STEP_PHASE_WAITING


async def condition_results(world: World, script: Script) -> pb.ConditionResults:
    """What the Execute of `Waiter-1` was told about its conditions, from history."""
    reply = await world.stub.GetHistoryEvents(pb.GetHistoryEventsRequest(flow_id=script.flow_id))
    events = [event.step_execute_completed for event in reply.events]
    found = [event for event in events if event.context.step_execution_id == "Waiter-1"]
    return found[0].input.condition_results


@behaviour("conditions.bounds")
@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        (lambda: INBOX.for_n(0), "|3"),
        (lambda: INBOX.for_n(2), "a,b|1"),
        (lambda: INBOX.at_least(2), "a,b,c|0"),
        (lambda: INBOX.at_most(2), "a,b|1"),
        (lambda: INBOX.for_range(at_least=1, at_most=2), "a,b|1"),
    ],
    ids=["for 0", "for n", "at least", "at most", "range"],
)
async def test_a_channel_condition_takes_what_its_bounds_say(
    world: World, wait: Callable[[], Condition], expected: str
) -> None:
    script = waiting(lambda: Wait.until(wait()), before="abc")
    assert await outcome(world, script) == expected


@behaviour("conditions.at-most-is-ready")
async def test_at_most_is_ready_with_nothing(world: World) -> None:
    assert await outcome(world, waiting(lambda: Wait.until(INBOX.at_most(3)))) == "|0"


@behaviour("conditions.any-of-timer-wins")
async def test_a_timer_that_fires_leaves_the_messages_of_the_losing_channel(world: World) -> None:
    def report(context: AsyncContext) -> str:
        return f"{context.has_timer_fired(0)},{list(INBOX.results(context))}"

    def wait() -> Wait:
        return Wait.any_of(Timer.by_duration(seconds(1)), INBOX.for_n(3))

    script = waiting(wait, before="ab", report=report)
    assert await outcome(world, script) == "True,[]|2"
    results = await condition_results(world, script)
    assert [timer.condition_status for timer in results.timer_results] == [
        pb.CONDITION_STATUS_COMPLETED
    ]
    assert [channel.condition_status for channel in results.channel_results] == [
        pb.CONDITION_STATUS_WAITING
    ]


@behaviour("conditions.any-of-message-wins")
async def test_a_message_beats_a_timer_that_has_not_fired(world: World) -> None:
    def report(context: AsyncContext) -> str:
        return f"{context.has_timer_fired(0)},{','.join(INBOX.results(context))}"

    def wait() -> Wait:
        return Wait.any_of(Timer.by_duration(seconds(600)), INBOX.for_one())

    script = waiting(wait, report=report)
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    await world.call(PROBE.send, script.flow_id, "m")
    assert (await world.result(script)).single_output(str) == "False,m|0"
    results = await condition_results(world, script)
    assert results.timer_results[0].condition_status == pb.CONDITION_STATUS_WAITING
    assert results.channel_results[0].condition_status == pb.CONDITION_STATUS_COMPLETED


@behaviour("conditions.losing-timer")
async def test_the_firing_of_a_timer_that_lost_has_no_effect(world: World) -> None:
    def wait() -> Wait:
        return Wait.any_of(Timer.by_duration(seconds(1)), INBOX.for_one())

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        # Longer than the timer would have needed.
        await asyncio.sleep(1.5)
        return graceful_complete(str(context.has_timer_fired(0)))

    script = waiting(wait, before="m")
    script.execute["Waiter"] = execute
    assert await outcome(world, script) == "False"
    assert len(script.calls_of("Waiter")) == 1


@behaviour("conditions.any-of-both-ready")
async def test_a_fired_timer_beats_a_ready_channel(world: World) -> None:
    def report(context: AsyncContext) -> str:
        return f"{context.has_timer_fired(0)},{list(INBOX.results(context))}"

    def wait() -> Wait:
        return Wait.any_of(INBOX.for_one(), Timer.by_duration(seconds(0)))

    assert await outcome(world, waiting(wait, before="a", report=report)) == "True,[]|1"


@behaviour("conditions.all-of")
async def test_all_of_takes_from_both_channels_or_from_none(world: World) -> None:
    def report(context: AsyncContext) -> str:
        return ",".join((*INBOX.results(context), *OTHER.results(context)))

    script = waiting(lambda: Wait.all_of(INBOX.for_one(), OTHER.for_one()), report=report)

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(f"{INBOX.size(context)} {OTHER.size(context)}")

    async def change(context: Context, given: str) -> RPCResult[str]:
        OTHER.publish(context, given)
        return RPCResult("")

    script.rpc.update(look=look, change=change)
    await world.start(script)
    await world.call(PROBE.send, script.flow_id, "a")
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    assert await world.call(PROBE.look, script.flow_id, "") == "1 0"
    await world.call(PROBE.change, script.flow_id, "b")
    assert (await world.result(script)).single_output(str) == "a,b|0"


@behaviour("conditions.any-combination")
async def test_the_first_satisfied_combination_wins_and_others_take_nothing(world: World) -> None:
    def wait() -> Wait:
        inbox = INBOX.for_one(condition_id="inbox")
        other = OTHER.for_one(condition_id="other")
        timer = Timer.by_duration(seconds(0), condition_id="timer")
        return Wait.any_combination_of(
            ConditionCombination.of(other, timer), ConditionCombination.of(inbox, timer)
        )

    assert await outcome(world, waiting(wait, before="ab")) == "a|1"


@behaviour("conditions.shared-channel")
async def test_two_conditions_on_one_channel_share_its_messages(world: World) -> None:
    def wait() -> Wait:
        return Wait.all_of(INBOX.for_one(), INBOX.for_n(2))

    assert await outcome(world, waiting(wait, before="abcd")) == "a,b,c|1"


@behaviour("conditions.channel-map")
async def test_instances_of_a_channel_map_are_independent(world: World) -> None:
    def report(context: AsyncContext) -> str:
        return ",".join(BOXES.results(context, "x y é"))

    script = waiting(lambda: Wait.until(BOXES.for_one("x y é")), report=report)

    async def change(context: Context, given: str) -> RPCResult[str]:
        BOXES.publish(context, given, f"for {given}")
        return RPCResult("")

    async def look(context: Context, given: str) -> RPCResult[str]:
        keys = BOXES.get_all_instance_keys(context)
        return RPCResult(",".join(f"{key}={BOXES.size(context, key)}" for key in keys))

    script.rpc.update(change=change, look=look)
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    for key in ("z", "ü:%$", "z"):
        await world.call(PROBE.change, script.flow_id, key)
    keys = (await world.call(PROBE.look, script.flow_id, "")).split(",")
    assert sorted(keys) == ["z=2", "ü:%$=1"]
    await world.call(PROBE.change, script.flow_id, "x y é")
    assert (await world.result(script)).single_output(str) == "for x y é|0"


@behaviour("conditions.one-message-one-waiter")
async def test_one_message_wakes_exactly_one_waiter_and_that_is_the_older(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(StepMovement.of(Waiter, "older"), StepMovement.of(Watcher, "younger"))

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.until(INBOX.for_one())

    async def execute(context: AsyncContext, given: str) -> StepDecision:
        return graceful_complete(f"{given} {INBOX.results(context)[0]}")

    script = Script(
        execute={"Start": start, "Waiter": execute, "Watcher": execute},
        wait_for={"Waiter": wait, "Watcher": wait},
    )
    await world.start(script)
    await until(lambda: len([c for c in script.calls if c.method == "wait_for"]) == 2)
    await world.call(PROBE.send, script.flow_id, "1")
    await until(lambda: script.calls_of("Waiter"))
    assert not script.calls_of("Watcher")
    await world.call(PROBE.send, script.flow_id, "2")
    result = await world.result(script)
    assert sorted(done.decode(str) for done in result.completions) == ["older 1", "younger 2"]


@behaviour("conditions.timer")
async def test_a_timer_fires_at_the_second_that_was_fixed_when_the_wait_began(
    world: World,
) -> None:
    script = waiting(lambda: Wait.until(Timer.by_duration(seconds(2))))
    before = int(time.time())
    await world.start(script)
    await until(lambda: waits(world, script))
    timers = (await state_of(world, script)).active_step_executions[0].timers
    due = timers[0].firing_unix_timestamp_seconds
    assert before + 2 <= due <= int(time.time()) + 2
    assert timers[0].status == pb.INTERNAL_TIMER_STATUS_PENDING
    await world.result(script)
    assert script.calls_of("Waiter")[0].first_attempt_at >= due


@behaviour("conditions.skip-timer")
@pytest.mark.parametrize(
    "timer", [TimerId.by_condition_index(0), TimerId.by_condition_id("bell")], ids=["index", "id"]
)
async def test_a_skipped_timer_counts_as_fired_and_cannot_be_skipped_again(
    world: World, timer: TimerId
) -> None:
    script = waiting(
        lambda: Wait.until(Timer.by_duration(seconds(600), condition_id="bell")),
        report=lambda context: str(context.has_timer_fired(0)),
    )
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    execution = StepExecutionId("Waiter", 1)

    async def skip() -> bool:
        try:
            await world.client.skip_timer(script.flow_id, execution, timer)
        except DexServiceError:
            return False
        return True

    await until(skip)
    assert (await world.result(script)).single_output(str) == "True|0"
    with pytest.raises(DexServiceError):
        await world.client.skip_timer(script.flow_id, execution, timer)
