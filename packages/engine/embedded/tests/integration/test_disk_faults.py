"""Disks that fail: the engine says so, stops, and what it acknowledged is there afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from pathlib import Path

import pytest
from dex.dexpb import dex_pb2 as pb
from engine_testing.process import engine_process, start_engine
from engine_testing.small_disk import SmallDisk, small_disk
from engine_testing.world import World, open_world
from grpc.aio import AioRpcError

from dex_embedded import open_engine
from dex_embedded._store.check import check_file

STEPLESS = "A type without workers"
FILE_LIMIT = 700_000
FULL = "full|No space|disk I/O"


@pytest.fixture
def disk(tmp_path: Path) -> Generator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        if made is None:
            pytest.skip("no file system may be mounted here")
        yield made


async def start_flow(world: World) -> str:
    flow_id = f"full-{uuid.uuid4().hex[:12]}"
    request = pb.StartFlowRequest(flow_id=flow_id, flow_type=STEPLESS, request_id=flow_id)
    await world.stub.StartFlow(request)
    return flow_id


async def publish(world: World, flow_id: str, number: int) -> None:
    message = pb.ChannelMessage(
        channel_name="Inbox", value=pb.Value(string_value=f"{number} " + "x" * 5_000)
    )
    await world.stub.PublishToChannel(
        pb.PublishToChannelRequest(flow_id=flow_id, messages=[message])
    )


async def write_messages(folder: Path, tmp_path: Path, count: int) -> str:
    """Has an engine write a flow with messages, and stop; returns the flow's id."""
    async with (
        open_engine(folder, drain_seconds=0) as engine,
        open_world(engine.address, tmp_path, []) as world,
    ):
        flow_id = await start_flow(world)
        for number in range(count):
            await publish(world, flow_id, number)
    return flow_id


async def check_refused(folder: Path, words: str) -> None:
    """No engine starts on the folder, and it says why."""
    with pytest.raises(RuntimeError, match=words) as failure:
        await start_engine(folder)
    assert "Traceback" not in str(failure.value)


async def publish_until_refused(world: World, flow_id: str) -> int:
    """Returns how many messages were acknowledged."""
    for number in range(2_000):
        try:
            await publish(world, flow_id, number)
        except AioRpcError as error:
            if error.code().name != "UNAVAILABLE":
                raise
            return number
    raise AssertionError("the disk was never full")


async def numbers_in(world: World, flow_id: str) -> list[int]:
    request = pb.GetChannelMessagesRequest(flow_id=flow_id, channel_name="Inbox")
    messages = (await world.stub.GetChannelMessages(request)).messages
    return [int(message.value.string_value.split()[0]) for message in messages]


async def check_all_is_there(folder: Path, tmp_path: Path, flow_id: str, acknowledged: int) -> None:
    """Starts an engine that has room again; it has every acknowledged message, and takes more."""
    assert check_file(folder / "dex.sqlite3").problems == ()
    async with (
        open_engine(folder, drain_seconds=0) as engine,
        open_world(engine.address, tmp_path, []) as world,
    ):
        found = await numbers_in(world, flow_id)
        # One more may have become durable although its answer was lost.
        assert found in (list(range(acknowledged)), list(range(acknowledged + 1)))
        await publish(world, flow_id, len(found))
        assert await numbers_in(world, flow_id) == list(range(len(found) + 1))


async def fill(folder: Path, tmp_path: Path, file_limit: int | None) -> tuple[str, int]:
    log: list[str] = []
    async with (
        engine_process(folder, log=log, file_limit=file_limit) as engine,
        open_world(engine.address, tmp_path, []) as world,
    ):
        flow_id = await start_flow(world)
        acknowledged = await publish_until_refused(world, flow_id)
        assert acknowledged > 10
        assert await engine.wait_gone() == 1
    said = "".join(log)
    assert "the engine had to stop" in said
    assert "full" in said or "disk I/O" in said
    assert "Traceback" not in said
    return flow_id, acknowledged


async def test_when_files_may_not_grow_the_engine_stops_with_words_and_loses_nothing(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    flow_id, acknowledged = await fill(folder, tmp_path, FILE_LIMIT)
    await check_all_is_there(folder, tmp_path, flow_id, acknowledged)


async def test_when_the_disk_is_full_the_engine_stops_with_words_and_loses_nothing(
    disk: SmallDisk, tmp_path: Path
) -> None:
    folder = disk.folder / "data"
    flow_id, acknowledged = await fill(folder, tmp_path, None)
    disk.grow()
    await check_all_is_there(folder, tmp_path, flow_id, acknowledged)


async def test_an_engine_on_a_full_disk_does_not_start_and_leaves_the_data_as_it_was(
    disk: SmallDisk, tmp_path: Path
) -> None:
    folder = disk.folder / "data"
    flow_id = await write_messages(folder, tmp_path, 1)
    disk.fill()
    before = (folder / "dex.sqlite3").read_bytes()
    await check_refused(folder, FULL)
    assert (folder / "dex.sqlite3").read_bytes() == before
    disk.grow()
    await check_all_is_there(folder, tmp_path, flow_id, 1)


async def test_a_full_disk_on_which_nothing_was_yet_is_a_clear_error(disk: SmallDisk) -> None:
    disk.fill()
    await check_refused(disk.folder / "data", FULL)


async def test_an_engine_on_a_read_only_disk_does_not_start_and_leaves_the_data_as_it_was(
    disk: SmallDisk, tmp_path: Path
) -> None:
    folder = disk.folder / "data"
    flow_id = await write_messages(folder, tmp_path, 1)
    disk.make_read_only()
    await check_refused(folder, "Read-only")
    disk.make_writable()
    await check_all_is_there(folder, tmp_path, flow_id, 1)


async def test_a_data_file_damaged_in_the_middle_is_refused_and_left_as_it_is(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    await write_messages(folder, tmp_path, 50)
    file = folder / "dex.sqlite3"
    content = bytearray(file.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    file.write_bytes(content)
    await check_refused(folder, r"dex\.sqlite3")
    assert file.read_bytes() == content
