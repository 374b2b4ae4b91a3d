"""Streams: live logs beside the flows."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest
from dex import (
    AsyncContext,
    DexServiceError,
    LongPollTimeoutError,
    RetryPolicy,
    StepDecision,
    StepMovement,
    StepOptions,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import EVENTS, Alpha, Script
from engine_testing.world import World
from grpc.aio import AioRpcError

behaviour = pytest.mark.behaviour
SHORT = timedelta(seconds=1)
LONG = timedelta(seconds=20)


async def read_all(world: World, flow_id: str, token: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    while True:
        try:
            message = await world.client.read_stream(flow_id, EVENTS, token, timeout=SHORT)
        except LongPollTimeoutError:
            return found
        found.append((message.value, message.source))
        token = message.resume_token


@behaviour("streams.step-writes")
async def test_messages_of_a_step_come_in_order_from_every_attempt(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        retry = RetryPolicy(timedelta(seconds=1), maximum_attempts=2)
        return go_to_many(StepMovement.of(Alpha, "", options=StepOptions(execute_retry=retry)))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        for number in range(3):
            EVENTS.write(context, f"{context.attempt}.{number}")
        if context.attempt == 1:
            raise RuntimeError("again")
        return graceful_complete()

    script = Script(execute={"Start": start, "Alpha": alpha})
    await world.start(script)
    await world.result(script)
    expected = [f"{attempt}.{number}" for attempt in (1, 2) for number in range(3)]
    assert await read_all(world, script.flow_id) == [(text, "#Alpha-1") for text in expected]


@behaviour("streams.resume")
async def test_a_resume_token_continues_without_loss_or_repeat(world: World) -> None:
    flow_id = f"stream-{uuid.uuid4().hex}"
    for number in range(4):
        await world.client.write_stream(flow_id, EVENTS, "test", str(number))
    first = await world.client.read_stream(flow_id, EVENTS, timeout=SHORT)
    assert first.value == "0"
    rest = await read_all(world, flow_id, first.resume_token)
    assert [value for value, _ in rest] == ["1", "2", "3"]


@behaviour("streams.long-poll")
async def test_a_reader_waits_for_the_next_message_and_no_longer_than_asked(world: World) -> None:
    flow_id = f"stream-{uuid.uuid4().hex}"
    with pytest.raises(LongPollTimeoutError):
        await world.client.read_stream(flow_id, EVENTS, timeout=SHORT)
    readers = [
        asyncio.create_task(world.client.read_stream(flow_id, EVENTS, timeout=LONG))
        for _ in range(3)
    ]
    await world.client.write_stream(flow_id, EVENTS, "test", "news")
    assert [message.value for message in await asyncio.gather(*readers)] == ["news"] * 3


@behaviour("streams.beyond-the-flow")
async def test_a_stream_is_readable_after_its_flow_closed_and_writable_without_one(
    world: World,
) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        EVENTS.write(context, "from the step")
        return graceful_complete()

    script = Script(execute={"Start": start})
    await world.start(script)
    await world.result(script)
    await world.client.write_stream(script.flow_id, EVENTS, "test", "afterwards")
    assert [value for value, _ in await read_all(world, script.flow_id)] == [
        "from the step",
        "afterwards",
    ]


def small_write(flow_id: str, stream: str, text: str) -> pb.WriteStreamRequest:
    return pb.WriteStreamRequest(
        flow_id=flow_id,
        flow_type="Probe",
        stream_name=stream,
        stream_capacity_bytes=8_000,
        value=pb.Value(string_value=text),
        source="test",
    )


@behaviour("streams.trimming")
async def test_the_oldest_messages_go_when_the_capacity_is_reached(world: World) -> None:
    flow_id, stream = f"stream-{uuid.uuid4().hex}", uuid.uuid4().hex
    read = pb.ReadStreamRequest(
        flow_id=flow_id, flow_type="Probe", stream_name=stream, wait_time_seconds=1
    )
    await world.stub.WriteStream(small_write(flow_id, stream, "first"))
    old = (await world.stub.ReadStream(read)).message.resume_token
    for number in range(40):
        await world.stub.WriteStream(small_write(flow_id, stream, str(number)))
    oldest = (await world.stub.ReadStream(read)).message.value.string_value
    assert oldest not in ("first", "0")
    read.resume_token = old
    assert (await world.stub.ReadStream(read)).message.value.string_value == oldest


@behaviour("streams.list")
async def test_a_list_runs_newest_first_and_pages_without_later_writes(world: World) -> None:
    flow_id = f"stream-{uuid.uuid4().hex}"
    for number in range(5):
        await world.client.write_stream(flow_id, EVENTS, "test", str(number))
    page = await world.client.list_stream_messages(flow_id, EVENTS, page_size=2)
    await world.client.write_stream(flow_id, EVENTS, "test", "late")
    values = [message.value for message in page.messages]
    while page.next_page_token:
        page = await world.client.list_stream_messages(
            flow_id, EVENTS, page_size=2, before_page_token=page.next_page_token
        )
        values.extend(message.value for message in page.messages)
    assert values == ["4", "3", "2", "1", "0"]


@behaviour("streams.limits")
async def test_a_message_over_the_limit_and_a_foreign_token_are_refused(world: World) -> None:
    flow_id = f"stream-{uuid.uuid4().hex}"
    with pytest.raises(DexServiceError) as refusal:
        await world.client.write_stream(flow_id, EVENTS, "test", "x" * 110_000)
    assert refusal.value.code.name == "RESOURCE_EXHAUSTED"
    await world.client.write_stream(flow_id, EVENTS, "test", "x")
    token = (await world.client.read_stream(flow_id, EVENTS)).resume_token
    for bad in (token + "x", "AAAA", "é"):
        request = pb.ReadStreamRequest(
            flow_id=f"{flow_id}-other", flow_type="Probe", stream_name="Events", resume_token=bad
        )
        with pytest.raises(AioRpcError) as failure:
            await world.stub.ReadStream(request)
        assert failure.value.code().name == "INVALID_ARGUMENT"
