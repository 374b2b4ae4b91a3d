"""Attributes, and finding flows by them."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest
from dex import (
    AsyncContext,
    AttributeMatch,
    Context,
    DexServiceError,
    FlowNotActiveOrNotFoundError,
    FlowStatus,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    WaitForAttributeOptions,
    dead_end,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import (
    COUNT,
    ITEMS,
    NOTE,
    PROBE,
    SECRET,
    STATUS,
    Alpha,
    Rpc,
    Script,
)
from engine_testing.raw_worker import raw_stream, start_raw_flow
from engine_testing.world import World, until

behaviour = pytest.mark.behaviour


def idle(**rpcs: Rpc) -> Script:
    """A flow without active Steps."""

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return dead_end()

    return Script(execute={"Start": start}, rpc=rpcs)


async def set_status(context: Context, given: str) -> RPCResult[str]:
    if given:
        STATUS.set(context, given)
    else:
        STATUS.delete(context)
    return RPCResult("")


@behaviour("attributes.delete")
async def test_a_deleted_attribute_is_gone_everywhere(world: World) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        if given == "set":
            COUNT.set(context, 5)
            ITEMS.set(context, "a", "1")
            ITEMS.set(context, "b", "2")
        else:
            COUNT.delete(context)
            ITEMS.delete(context, "a")
        return RPCResult("")

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(f"{COUNT.get(context)} {ITEMS.get_all_instance_keys(context)}")

    script = idle(change=change, look=look)
    await world.start(script)
    await world.call(PROBE.change, script.flow_id, "set")
    assert await world.call(PROBE.look, script.flow_id, "") == "5 ('a', 'b')"
    await world.call(PROBE.change, script.flow_id, "delete")
    assert await world.call(PROBE.look, script.flow_id, "") == "0 ('b',)"
    reply = await world.stub.GetAttributes(
        pb.GetAttributesRequest(flow_id=script.flow_id, all_keys=True)
    )
    assert [pair.key for pair in reply.attributes] == ["Items/b"]


@behaviour("attributes.map-keys")
async def test_the_keys_of_a_loaded_map_are_listed_and_a_deleted_entry_is_not(
    world: World,
) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        for key in ("b", "a", "ü %"):
            ITEMS.set(context, key, key)
        if given:
            ITEMS.delete(context, given)
        return RPCResult("")

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(",".join(sorted(ITEMS.get_all_instance_keys(context))))

    script = idle(change=change, look=look)
    await world.start(script)
    await world.call(PROBE.change, script.flow_id, "")
    assert await world.call(PROBE.look, script.flow_id, "") == "a,b,ü %"
    await world.call(PROBE.change, script.flow_id, "b")
    assert await world.call(PROBE.look, script.flow_id, "") == "a,ü %"


@behaviour("attributes.hard-delete")
async def test_a_hard_delete_attribute_is_read_like_others_and_never_shows_in_history(
    world: World,
) -> None:
    secret = f"secret {uuid.uuid4().hex}"

    async def change(context: Context, given: str) -> RPCResult[str]:
        if given:
            SECRET.set(context, given)
        else:
            SECRET.delete(context)
        return RPCResult("")

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult("right" if SECRET.get(context) == secret else "none")

    async def start(context: AsyncContext, given: str) -> StepDecision:
        SECRET.set(context, secret)
        return dead_end()

    script = Script(execute={"Start": start}, rpc={"change": change, "look": look})
    await world.start(script)

    async def written() -> bool:
        return await world.call(PROBE.look, script.flow_id, "") == "right"

    await until(written)
    await world.call(PROBE.change, script.flow_id, "")
    assert await world.call(PROBE.look, script.flow_id, "") == "none"
    reply = await world.stub.GetHistoryEvents(pb.GetHistoryEventsRequest(flow_id=script.flow_id))
    assert len(reply.events) >= 3
    assert secret.encode() not in reply.SerializeToString()


@behaviour("attributes.direct-access")
async def test_attributes_can_be_written_and_read_from_outside(world: World) -> None:
    script = idle()
    await world.start(script)
    request = pb.SetAttributesRequest(
        flow_id=script.flow_id,
        request_id=str(uuid.uuid4()),
        attributes=[pb.AttributeWrite(key="Note", value=pb.Value(string_value="outside"))],
    )
    await world.stub.SetAttributes(request)
    reply = await world.stub.GetAttributes(
        pb.GetAttributesRequest(flow_id=script.flow_id, keys=["Note", "Count"])
    )
    assert [(pair.key, pair.value.string_value) for pair in reply.attributes] == [
        ("Note", "outside")
    ]


@behaviour("search.index")
async def test_an_indexed_attribute_is_found_until_it_is_deleted(world: World) -> None:
    wanted = f"status {uuid.uuid4().hex}"
    script = idle(change=set_status)
    await world.start(script)
    await world.call(PROBE.change, script.flow_id, wanted)
    query = f"FlowType = 'Probe' AND ProbeStatus = '{wanted}'"
    page = await world.client.search_flows(query, page_size=10)
    assert [entry.flow_id for entry in page.flows] == [script.flow_id]
    assert page.flows[0].status is FlowStatus.RUNNING
    await world.call(PROBE.change, script.flow_id, "")
    assert not (await world.client.search_flows(query, page_size=10)).flows


@behaviour("search.paging")
async def test_paging_returns_each_run_once_and_the_newest_first(world: World) -> None:
    wanted = f"page {uuid.uuid4().hex}"
    scripts = [idle(change=set_status) for _ in range(5)]
    for script in scripts:
        await world.start(script)
        await world.call(PROBE.change, script.flow_id, wanted)
    query = f"ProbeStatus = '{wanted}' AND ExecutionStatus = 'Running'"
    found: list[str] = []
    token = ""
    while True:
        page = await world.client.search_flows(query, page_size=2, next_page_token=token)
        found.extend(entry.flow_id for entry in page.flows)
        token = page.next_page_token
        if not token:
            break
    assert found == [script.flow_id for script in reversed(scripts)]


@behaviour("search.bad-query")
@pytest.mark.parametrize("query", ["FlowType =", "NoSuchField = 1", "FlowType LIKE 'x'"])
async def test_a_query_that_cannot_be_read_is_refused(world: World, query: str) -> None:
    with pytest.raises(DexServiceError) as refusal:
        await world.client.search_flows(query, page_size=10)
    assert refusal.value.code.name == "INVALID_ARGUMENT"


@behaviour("waits.attribute-match")
async def test_a_wait_for_an_attribute_returns_its_value_or_ends_with_the_flow(
    world: World,
) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        COUNT.set(context, int(given))
        return RPCResult("")

    script = idle(change=change)
    await world.start(script)
    options = WaitForAttributeOptions(request_timeout=timedelta(seconds=20))
    wait = asyncio.create_task(
        world.client.wait_for_attribute_match(
            script.flow_id, COUNT, AttributeMatch.greater_than(3), options
        )
    )
    for number in (1, 2, 7):
        await world.call(PROBE.change, script.flow_id, str(number))
    assert await wait == 7
    hopeless = asyncio.create_task(
        world.client.wait_for_attribute_match(
            script.flow_id, NOTE, AttributeMatch.equal_to("never"), options
        )
    )
    await world.client.stop_flow(script.flow_id)
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await hopeless


@behaviour("values.large-snapshot")
async def test_a_snapshot_too_large_for_a_frame_fails_that_method_and_names_the_keys(
    world: World,
) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        ITEMS.set(context, given, "x" * 1_200_000)
        return RPCResult("")

    async def start(context: AsyncContext, given: str) -> StepDecision:
        await until(lambda: len(seen) == 4)
        options = StepOptions(execute_load_attribute_maps=(ITEMS,))
        return go_to_many(StepMovement.of(Alpha, "", options=options))

    seen: list[str] = []
    script = Script(execute={"Start": start}, rpc={"change": change})
    await world.start(script)
    for key in "abcd":
        await world.call(PROBE.change, script.flow_id, key)
        seen.append(key)
    result = await world.result(script)
    assert result.status is FlowStatus.FAILED
    assert "Items/a" in (result.error_message or "")
    assert "3,670,016" in (result.error_message or "")
    other = Script()
    await world.start(other, "still served")
    assert (await world.result(other)).single_output(str) == "still served"


@behaviour("values.large-rpc")
async def test_an_rpc_whose_snapshot_or_reply_is_too_large_fails_with_words(world: World) -> None:
    async def change(context: Context, given: str) -> RPCResult[str]:
        ITEMS.set(context, given, "x" * 1_900_000)
        return RPCResult("x" * 3_900_000 if given == "reply" else "")

    script = idle(change=change)
    await world.start(script)
    with pytest.raises(DexServiceError, match="limit"):
        await world.call(PROBE.change, script.flow_id, "reply")
    await world.call(PROBE.change, script.flow_id, "a")
    with pytest.raises(DexServiceError, match="limit"):
        await world.call(PROBE.look, script.flow_id, "")
    assert await world.call(PROBE.send, script.flow_id, "fine") == "fine"


@behaviour("values.large-result")
async def test_a_result_of_five_megabytes_is_taken(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        for number in range(5):
            ITEMS.set(context, str(number), "x" * 1_000_000)
        return graceful_complete()

    script = Script(execute={"Start": start})
    await world.start(script)
    assert (await world.result(script)).status is FlowStatus.COMPLETED


KINDS = (
    pb.Value(string_value="text \u00fc \U0001f600 \n\x00"),
    pb.Value(string_value=""),
    pb.Value(int_value=2**63 - 1),
    pb.Value(int_value=-(2**63)),
    pb.Value(double_value=0.1),
    pb.Value(bool_value=False),
    pb.Value(obj_value=pb.EncodedObject(encoding="json", payload=b'{"a": [1, null]}')),
    pb.Value(obj_value=pb.EncodedObject(encoding="bytes", payload=bytes(range(256)))),
)


@behaviour("values.kinds")
async def test_a_value_of_every_kind_comes_back_as_it_was_given(world: World) -> None:
    flow_type = f"Kinds {uuid.uuid4().hex[:8]}"
    async with raw_stream(world.address, flow_type) as stream:
        for value in KINDS:
            flow_id = await start_raw_flow(world.stub, flow_type, step_input=value)
            task = await stream.read_task()
            assert task.execute.step_input == value
            await stream.execute_output(
                task.task_id,
                pb.InvokeExecuteMethodOutput(
                    stream_write=pb.StepStreamWrite(
                        stream_name="Events", stream_capacity_bytes=1_000_000, value=value
                    )
                ),
            )
            result = pb.InvokeExecuteMethodResponse(
                upsert_attributes=[pb.AttributeWrite(key="Note", value=value)],
                publish_to_channel=[pb.ChannelMessage(channel_name="Inbox", value=value)],
            )
            await stream.execute_done(task.task_id, result, output=value)
            ended = await world.stub.WaitForFlow(
                pb.WaitForFlowRequest(flow_id=flow_id, needs_results=True, wait_time_seconds=20)
            )
            assert [entry.completed_step_output for entry in ended.results] == [value]
            attributes = await world.stub.GetAttributes(
                pb.GetAttributesRequest(flow_id=flow_id, keys=["Note"])
            )
            assert [pair.value for pair in attributes.attributes] == [value]
            pending = await world.stub.GetChannelMessages(
                pb.GetChannelMessagesRequest(flow_id=flow_id, channel_name="Inbox")
            )
            assert [message.value for message in pending.messages] == [value]
            written = await world.stub.ReadStream(
                pb.ReadStreamRequest(flow_id=flow_id, flow_type=flow_type, stream_name="Events")
            )
            assert written.message.value == value
            invoke = pb.InvokeRPCRequest(
                flow_id=flow_id, rpc_name="echo", input=value, request_id=str(uuid.uuid4())
            )
            call = asyncio.ensure_future(world.stub.InvokeRPC(invoke))
            task = await stream.read_task()
            await stream.rpc_done(task.task_id, pb.InvokeWorkerRPCResponse(output=task.rpc.input))
            assert (await call).output == value
