"""Calls of flow methods from outside."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable

import pytest
from dex import (
    AsyncContext,
    ChannelMessageNotFoundError,
    Context,
    FlowNotActiveOrNotFoundError,
    FlowStatus,
    RpcLockConflictError,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    Wait,
    WorkerInvocationError,
    force_complete,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import (
    COUNT,
    INBOX,
    ITEMS,
    NOTE,
    OTHER,
    PROBE,
    Alpha,
    Rpc,
    Script,
    Waiter,
)
from engine_testing.world import World, until
from grpc.aio import AioRpcError

behaviour = pytest.mark.behaviour


def parked(**rpcs: Rpc) -> Script:
    """A flow that waits for two messages, with these RPC handlers."""

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, given)

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.until(INBOX.for_n(99))

    return Script(execute={"Start": start}, wait_for={"Waiter": wait}, rpc=rpcs)


async def history_size(world: World, script: Script) -> int:
    reply = await world.stub.GetHistoryEvents(pb.GetHistoryEventsRequest(flow_id=script.flow_id))
    return len(reply.events)


@behaviour("rpc.query-writes-nothing")
async def test_a_query_returns_its_output_and_leaves_no_trace(world: World) -> None:
    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(f"{given}!")

    script = parked(look=look)
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    await until(lambda: _is(history_size(world, script), 3))
    assert await world.call(PROBE.look, script.flow_id, "hi") == "hi!"
    assert await history_size(world, script) == 3


async def _is(value: Awaitable[int], expected: int) -> bool:
    return await value == expected


async def closed(world: World) -> Script:
    """A flow that has ended, whose `look` writes when it is asked to."""

    async def look(context: Context, given: str) -> RPCResult[str]:
        if given == "write":
            NOTE.set(context, "late")
        return RPCResult(NOTE.get(context) or "none")

    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "kept")
        return graceful_complete()

    script = Script(execute={"Start": start}, rpc={"look": look})
    await world.start(script)
    await world.result(script)
    return script


@behaviour("rpc.closed-flow-query")
async def test_a_query_works_on_a_closed_flow(world: World) -> None:
    script = await closed(world)
    assert await world.call(PROBE.look, script.flow_id, "") == "kept"


@behaviour("rpc.closed-flow-effects")
async def test_an_rpc_with_effects_or_a_transaction_is_refused_on_a_closed_flow(
    world: World,
) -> None:
    script = await closed(world)
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await world.call(PROBE.look, script.flow_id, "write")
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await world.call(PROBE.change, script.flow_id, "")
    assert await world.call(PROBE.look, script.flow_id, "") == "kept"


@behaviour("rpc.read-your-writes")
async def test_what_an_rpc_wrote_is_visible_when_it_returns(world: World) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        ITEMS.set(context, given, given)
        INBOX.publish(context, given)
        return RPCResult("")

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(f"{sorted(ITEMS.get_all_instance_keys(context))} {INBOX.size(context)}")

    script = parked(change=change, look=look)
    await world.start(script)
    for number in range(5):
        await world.call(PROBE.change, script.flow_id, str(number))
        keys = [str(key) for key in range(number + 1)]
        seen = await world.call(PROBE.look, script.flow_id, "")
        assert seen == f"{keys} {number + 1}"


@behaviour("rpc.steps")
async def test_steps_of_an_rpc_are_there_when_it_returns_and_name_it_as_their_origin(
    world: World,
) -> None:
    release = asyncio.Event()

    async def change(context: Context, given: str) -> RPCResult[str]:
        return RPCResult("", next_steps=(StepMovement.of(Alpha, "1"), StepMovement.of(Alpha, "2")))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        await release.wait()
        return force_complete(given)

    script = parked(change=change)
    script.execute["Alpha"] = alpha
    await world.start(script)
    await world.call(PROBE.change, script.flow_id, "")
    state = await world.stub.GetFlowState(pb.GetFlowStateRequest(flow_id=script.flow_id))
    active = {
        step.step_execution_id: step.from_step_execution_id
        for step in state.active_step_executions
        if step.step_type == "Alpha"
    }
    assert active == {"Alpha-1": "__rpc/change", "Alpha-2": "__rpc/change"}
    release.set()
    await world.result(script)
    assert {call.from_id for call in script.calls_of("Alpha")} == {"__rpc/change"}


@behaviour("rpc.cancels-steps")
async def test_an_rpc_cancels_steps_by_type_but_not_those_it_adds(world: World) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        added = (StepMovement.of(Alpha, "added"),)
        return RPCResult("", next_steps=added).with_canceling_steps(Waiter, Alpha)

    script = parked(change=change)
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    await world.call(PROBE.change, script.flow_id, "")
    assert (await world.result(script)).single_output(str) == "added"


def mover() -> Script:
    """A parked flow whose `change` moves a message from one channel to another."""

    async def change(context: Context, given: str) -> RPCResult[str]:
        INBOX.delete(context, given)
        OTHER.publish(context, "moved")
        NOTE.set(context, "moved")
        return RPCResult("")

    async def look(context: Context, given: str) -> RPCResult[str]:
        first = next(iter(INBOX.pending_messages(context)), None)
        message_id = first.message_id if first else ""
        return RPCResult(f"{NOTE.get(context)},{message_id},{OTHER.size(context)}")

    return parked(change=change, look=look)


@behaviour("rpc.moves-a-message")
async def test_of_two_moves_of_one_message_the_second_fails(world: World) -> None:
    script = mover()
    await world.start(script)
    await world.call(PROBE.send, script.flow_id, "m")
    _, message_id, _ = (await world.call(PROBE.look, script.flow_id, "")).split(",")
    await world.call(PROBE.change, script.flow_id, message_id)
    assert await world.call(PROBE.look, script.flow_id, "") == "moved,,1"
    with pytest.raises(ChannelMessageNotFoundError):
        await world.call(PROBE.change, script.flow_id, message_id)
    assert await world.call(PROBE.look, script.flow_id, "") == "moved,,1"


@behaviour("rpc.missing-message-transactional")
async def test_a_transactional_rpc_that_deletes_a_missing_message_applies_nothing(
    world: World,
) -> None:
    script = mover()
    await world.start(script)
    with pytest.raises(ChannelMessageNotFoundError):
        await world.call(PROBE.change, script.flow_id, str(uuid.uuid4()))
    assert await world.call(PROBE.look, script.flow_id, "") == "None,,0"


@behaviour("rpc.missing-message-query")
async def test_an_rpc_without_a_transaction_ignores_a_missing_message_and_applies_the_rest(
    world: World,
) -> None:
    async def look(context: Context, given: str) -> RPCResult[str]:
        if given:
            INBOX.delete(context, str(uuid.uuid4()))
            NOTE.set(context, given)
        return RPCResult(str(NOTE.get(context)))

    script = parked(look=look)
    await world.start(script)
    await world.call(PROBE.look, script.flow_id, "applied")
    assert await world.call(PROBE.look, script.flow_id, "") == "applied"


@behaviour("rpc.locks")
async def test_of_many_locking_calls_each_success_counts_once_and_the_rest_conflict(
    world: World,
) -> None:
    async def locked(context: Context, given: str) -> RPCResult[str]:
        COUNT.set(context, COUNT.get(context) + 1)
        await asyncio.sleep(0)
        return RPCResult("")

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(str(COUNT.get(context)))

    script = parked(locked=locked, look=look)
    await world.start(script)
    results = await asyncio.gather(
        *(world.call(PROBE.locked, script.flow_id, "") for _ in range(100)),
        return_exceptions=True,
    )
    failures = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(failure, RpcLockConflictError) for failure in failures)
    count = await world.call(PROBE.look, script.flow_id, "")
    assert int(count) == len(results) - len(failures) >= 1


@behaviour("rpc.lock-held-by-step")
async def test_an_rpc_does_not_wait_for_a_lock_that_a_running_step_holds(world: World) -> None:
    holding = asyncio.Event()
    release = asyncio.Event()
    options = StepOptions(execute_lock_attributes=(COUNT.lock(),))

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(StepMovement.of(Alpha, "", options=options))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        holding.set()
        await release.wait()
        return graceful_complete()

    script = Script(execute={"Start": start, "Alpha": alpha})
    await world.start(script)
    await holding.wait()
    with pytest.raises(RpcLockConflictError):
        await world.call(PROBE.locked, script.flow_id, "")
    release.set()
    await world.result(script)


@behaviour("rpc.handler-error")
async def test_a_handler_error_keeps_type_and_text_and_the_flow_goes_on(world: World) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        raise KeyError("ü" * 5_000)

    script = parked(change=change)
    await world.start(script)
    with pytest.raises(WorkerInvocationError) as failure:
        await world.call(PROBE.change, script.flow_id, "")
    assert (failure.value.worker_error_type or "").endswith("KeyError")
    assert "üüü" in (failure.value.worker_error_detail or "")
    assert (await world.client.describe_flow(script.flow_id)).status is FlowStatus.RUNNING


@behaviour("rpc.reserved-capacity")
async def test_an_rpc_is_served_while_all_step_slots_are_busy(bare_world: World) -> None:
    world = bare_world
    release = asyncio.Event()
    running: set[str] = set()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        running.add(context.flow_id)
        await release.wait()
        return graceful_complete()

    async with world.worker(max_tasks=3):
        scripts = [Script(execute={"Start": start}) for _ in range(5)]
        for script in scripts:
            await world.start(script)
        await until(lambda: len(running) == 2)
        assert await world.call(PROBE.look, scripts[0].flow_id, "hi") == "hi"
        release.set()
        for script in scripts:
            await world.result(script)
            assert [call.attempt for call in script.calls] == [1]


@behaviour("rpc.no-worker")
async def test_an_rpc_that_no_worker_takes_fails_after_the_dispatch_wait(
    bare_world: World,
) -> None:
    script = parked()
    await bare_world.start(script)
    with pytest.raises(WorkerInvocationError) as failure:
        await asyncio.wait_for(bare_world.call(PROBE.look, script.flow_id, ""), timeout=30)
    assert "worker" in str(failure.value)


@behaviour("rpc.waits-for-a-worker")
async def test_an_rpc_is_served_by_a_worker_that_connects_in_time(bare_world: World) -> None:
    script = parked()
    await bare_world.start(script)
    call = asyncio.create_task(bare_world.call(PROBE.look, script.flow_id, "hi"))
    async with bare_world.worker():
        assert await call == "hi"


@behaviour("rpc.request-id")
async def test_a_repeated_request_of_a_transactional_rpc_runs_its_handler_once(
    world: World,
) -> None:
    runs: list[str] = []

    async def change(context: Context, given: str) -> RPCResult[str]:
        runs.append(given)
        return RPCResult(f"result {len(runs)}")

    script = parked(change=change)
    await world.start(script)
    request = pb.InvokeRPCRequest(
        flow_id=script.flow_id,
        rpc_name="change",
        input=pb.Value(string_value="x"),
        is_transactional=True,
        load_channel_names=["Inbox"],
        request_id=str(uuid.uuid4()),
    )
    replies = [await world.stub.InvokeRPC(request) for _ in range(2)]
    assert [reply.output.string_value for reply in replies] == ["result 1", "result 1"]
    assert runs == ["x"]


@behaviour("rpc.timeout")
async def test_an_rpc_over_its_time_is_cancelled_and_applies_nothing(world: World) -> None:
    cancelled = asyncio.Event()

    async def change(context: Context, given: str) -> RPCResult[str]:
        NOTE.set(context, "late")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return RPCResult("")

    script = parked(change=change)
    await world.start(script)
    request = pb.InvokeRPCRequest(
        flow_id=script.flow_id,
        rpc_name="change",
        input=pb.Value(string_value=""),
        is_transactional=True,
        timeout_seconds=1,
        request_id=str(uuid.uuid4()),
    )
    with pytest.raises(AioRpcError) as failure:
        await world.stub.InvokeRPC(request)
    assert failure.value.code().name == "DEADLINE_EXCEEDED"
    await asyncio.wait_for(cancelled.wait(), 10)

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(str(NOTE.get(context)))

    script.rpc["look"] = look
    assert await world.call(PROBE.look, script.flow_id, "") == "None"
