"""What history tells."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from dex import (
    AsyncContext,
    Context,
    RetryPolicy,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import INBOX, NOTE, PROBE, Alpha, Rescue, Script, Waiter
from engine_testing.world import World, until

behaviour = pytest.mark.behaviour


async def events_of(world: World, script: Script, page_size: int = 0) -> list[pb.FlowHistoryEvent]:
    found: list[pb.FlowHistoryEvent] = []
    token = b""
    while True:
        reply = await world.stub.GetHistoryEvents(
            pb.GetHistoryEventsRequest(
                flow_id=script.flow_id, estimate_page_size=page_size, next_page_token=token
            )
        )
        found.extend(reply.events)
        token = reply.next_page_token
        if not token:
            return found


def kinds(events: list[pb.FlowHistoryEvent]) -> list[str | None]:
    return [event.WhichOneof("payload") for event in events]


def waiting_flow() -> Script:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "written")
        context.record_event("noted", 7)
        return go_to(Waiter, given)

    return Script(execute={"Start": start})


@behaviour("history.order")
async def test_events_follow_the_commits_and_their_ids_rise(world: World) -> None:
    script = waiting_flow()
    await world.start(script, "in")
    await world.call(PROBE.send, script.flow_id, "m")
    await world.result(script)
    events = await events_of(world, script)
    names = kinds(events)
    # The message may be published before the wait is registered or after it.
    assert sorted(map(str, names)) == sorted(
        [
            "flow_started_or_continued",
            "step_execute_completed",
            "rpc_execution_completed",
            "step_wait_for_completed",
            "step_execute_completed",
            "flow_closed",
        ]
    )
    assert (names[0], names[-1]) == ("flow_started_or_continued", "flow_closed")
    ids = [event.event_id for event in events]
    assert ids == sorted(set(ids))
    assert ids == [event.event_id for event in await events_of(world, script, page_size=2)]
    assert events[0].flow_started_or_continued.initial_start.step_input.string_value == "in"
    assert events[-1].flow_closed.flow_status == pb.FLOW_STATUS_COMPLETED


@behaviour("history.execute-event")
async def test_an_execute_event_shows_attempts_writes_and_decision(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "before")
        retry = RetryPolicy(timedelta(seconds=1), maximum_attempts=3)
        return go_to_many(StepMovement.of(Alpha, "x", options=StepOptions(execute_retry=retry)))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        if context.attempt == 1:
            raise KeyError("first")
        NOTE.set(context, "after")
        INBOX.publish(context, "m")
        context.record_event("noted", 7)
        return graceful_complete("out")

    script = Script(execute={"Start": start, "Alpha": alpha})
    await world.start(script)
    await world.result(script)
    executed = (await events_of(world, script))[2].step_execute_completed
    assert executed.context.step_execution_id == "Alpha-1"
    assert executed.context.from_step_execution_id == "Start-1"
    assert executed.context.final_attempt == 2
    assert executed.context.durability == pb.STEP_DURABILITY_SYNC
    failure = executed.context.last_failure_info
    assert failure.attempt == 1
    assert failure.details.original_worker_error_type.endswith("KeyError")
    assert executed.context.duration.ToMilliseconds() >= 900
    assert executed.input.step_input.string_value == "x"
    assert [(pair.key, pair.value.string_value) for pair in executed.input.attributes] == [
        ("Note", "before")
    ]
    written = executed.output.upsert_attributes
    assert [(write.key, write.value.string_value) for write in written] == [("Note", "after")]
    published = executed.output.publish_to_channel
    assert [(message.channel_name, message.value.string_value) for message in published] == [
        ("Inbox", "m")
    ]
    assert published[0].message_id
    assert executed.output.record_events[0].value.int_value == 7
    close = executed.output.step_decision.close_decision
    assert close.close_input.string_value == "out"


@behaviour("history.failed-method")
async def test_a_method_that_failed_for_good_has_one_event_and_its_retries_have_none(
    world: World,
) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        retry = RetryPolicy(timedelta(seconds=1), maximum_attempts=2)
        options = StepOptions(execute_retry=retry).on_execute_failure_proceed_to(Rescue)
        return go_to_many(StepMovement.of(Alpha, "x", options=options))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        raise KeyError(f"number {context.attempt}")

    script = Script(execute={"Start": start, "Alpha": alpha})
    await world.start(script)
    await world.result(script)
    events = await events_of(world, script)
    assert kinds(events)[2:4] == ["step_execute_failed", "step_execute_completed"]
    failed = events[2].step_execute_failed
    assert failed.context.final_attempt == 2
    details = failed.output.failure.details
    assert "number 2" in details.original_worker_error_detail
    assert details.original_worker_error_type.endswith("KeyError")
    assert "alpha" in details.original_worker_error_stack_trace


@behaviour("history.rpc-events")
async def test_an_rpc_with_effects_has_one_event_and_a_query_has_none(world: World) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        NOTE.set(context, given)
        return RPCResult("out")

    script = waiting_flow()
    script.rpc["change"] = change
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    await world.call(PROBE.look, script.flow_id, "q")
    await world.call(PROBE.change, script.flow_id, "in")
    rpcs = [
        event.rpc_execution_completed
        for event in await events_of(world, script)
        if event.WhichOneof("payload") == "rpc_execution_completed"
    ]
    assert [rpc.rpc_name for rpc in rpcs] == ["change"]
    assert (rpcs[0].input.string_value, rpcs[0].output.string_value) == ("in", "out")
    assert rpcs[0].upsert_attributes[0].value.string_value == "in"


@behaviour("history.pending-at-close")
async def test_a_cancelled_flow_shows_the_method_that_was_running(world: World) -> None:
    running = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        running.set()
        await asyncio.sleep(600)
        return graceful_complete()

    script = Script(execute={"Start": start})
    await world.start(script)
    await running.wait()
    await world.client.stop_flow(script.flow_id)
    events = await events_of(world, script)
    assert kinds(events)[-2:] == ["step_execute_pending", "flow_closed"]
    assert events[-2].step_execute_pending.phase == pb.PENDING_STEP_METHOD_PHASE_STARTED


@behaviour("history.long-poll")
async def test_a_wait_for_an_event_ends_with_the_next_commit(world: World) -> None:
    script = waiting_flow()
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))

    async def three() -> bool:
        return len(await events_of(world, script)) == 3

    await until(three)
    request = pb.WaitForHistoryEventRequest(
        flow_id=script.flow_id,
        run_id=(await world.client.describe_flow(script.flow_id)).run_id,
        next_internal_event_id=4,
    )
    waiting = asyncio.ensure_future(world.stub.WaitForHistoryEvent(request))
    await world.client.stop_flow(script.flow_id)
    reply = await waiting
    assert reply.event_available
    assert reply.available_internal_event_id >= 4
    assert reply.flow_status == pb.FLOW_STATUS_CANCELED


@behaviour("state.active-flow")
async def test_the_state_of_a_waiting_flow_shows_its_wait_and_messages(world: World) -> None:
    script = waiting_flow()

    async def change(context: Context, given: str) -> RPCResult[str]:
        INBOX.publish(context, "one too many")
        return RPCResult("")

    script.rpc["change"] = change
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))

    async def waiting() -> pb.GetFlowStateResponse | None:
        state = await world.stub.GetFlowState(pb.GetFlowStateRequest(flow_id=script.flow_id))
        active = state.active_step_executions
        return state if active and active[0].phase == pb.ACTIVE_STEP_PHASE_WAITING else None

    state = await until(waiting)
    execution = state.active_step_executions[0]
    assert execution.step_execution_id == "Waiter-1"
    assert execution.waiting_condition.channel_conditions[0].channel_name == "Inbox"
    assert [(pair.key, pair.value.string_value) for pair in state.attributes] == [
        ("Note", "written")
    ]
