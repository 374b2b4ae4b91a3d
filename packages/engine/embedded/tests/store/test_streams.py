from __future__ import annotations

from pathlib import Path

import pytest
from store_testing import opened

from dex_embedded._store import streams
from dex_embedded._store.errors import StreamCapacityError
from dex_embedded._store.protocol import StreamScope
from dex_embedded._store.sqlite import SqliteStore
from dex_embedded._store.streams import MESSAGE_OVERHEAD, charge_of

SCOPE = StreamScope(flow_type="Flow", stream_name="events")
PLENTY = 1_000_000


async def write(
    store: SqliteStore,
    value: bytes,
    flow_id: str = "f",
    scope: StreamScope = SCOPE,
    capacity: int = PLENTY,
) -> int:
    message_id, ticket = store.append_stream_message(
        scope, flow_id, value=value, source="#A-1", created_at=5.5, capacity=capacity
    )
    await ticket.wait()
    return message_id


def read_all(store: SqliteStore, flow_id: str = "f", scope: StreamScope = SCOPE) -> list[bytes]:
    """Reads on from the beginning, one message at a time."""
    values: list[bytes] = []
    after = 0
    while message := store.next_stream_message(scope, flow_id, after):
        values.append(message.value)
        after = message.id
    return values


def listed(store: SqliteStore, before: int | None, limit: int) -> list[bytes]:
    return [message.value for message in store.list_stream_messages(SCOPE, "f", before, limit)]


async def test_messages_are_read_in_order_with_source_and_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for number in range(3):
            await write(store, b"%d" % number)
        assert read_all(store) == [b"0", b"1", b"2"]
        first = store.next_stream_message(SCOPE, "f", 0)
        assert first is not None
        assert (first.source, first.created_at) == ("#A-1", 5.5)


async def test_a_reader_gets_the_same_however_much_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"%d" % number for number in range(6)]
    async with opened(tmp_path) as store:
        monkeypatch.setattr(streams, "KEPT_MESSAGES", 2)
        for value in values:
            await write(store, value)
        assert read_all(store) == values
        # Room for one message of all streams together: the stream written to before leaves.
        monkeypatch.setattr(streams, "KEPT_BYTES", MESSAGE_OVERHEAD + 50)
        await write(store, b"other", "g")
        await write(store, b"last", "f")
        assert read_all(store, "g") == [b"other"]
        assert read_all(store) == [*values, b"last"]


async def test_a_reader_that_has_everything_is_told_without_a_look_at_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as store:
        first = await write(store, b"1")
        second = await write(store, b"2")
        monkeypatch.setattr(streams, "read_next", None)
        found = store.next_stream_message(SCOPE, "f", first)
        assert found is not None
        assert found.value == b"2"
        assert store.next_stream_message(SCOPE, "f", second) is None


async def test_a_message_is_not_seen_before_it_is_durable(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        first = await write(store, b"1")
        _, ticket = store.append_stream_message(
            SCOPE, "f", value=b"2", source="#A-1", created_at=5.5, capacity=PLENTY, hurried=False
        )
        assert store.next_stream_message(SCOPE, "f", first) is None
        await ticket.wait()
        assert store.next_stream_message(SCOPE, "f", first) is not None


async def test_flows_and_scopes_do_not_see_each_other(tmp_path: Path) -> None:
    other = StreamScope(flow_type="Flow", stream_name="others")
    async with opened(tmp_path) as store:
        await write(store, b"1", "f")
        await write(store, b"2", "g")
        await write(store, b"3", "f", other)
        assert read_all(store, "f") == [b"1"]
        assert read_all(store, "g") == [b"2"]
        assert read_all(store, "f", other) == [b"3"]
        assert read_all(store, "f", StreamScope(flow_type="No", stream_name="no")) == []


async def test_ids_rise_over_restarts_also_when_everything_was_trimmed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        last = 0
        for _ in range(3):
            last = await write(store, b"old")
        store._writer.execute("DELETE FROM stream_message")
    async with opened(tmp_path) as store:
        assert await write(store, b"new") > last
        assert read_all(store) == [b"new"]


async def test_pages_go_from_the_newest_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        ids = [await write(store, b"%d" % number) for number in range(5)]
        assert listed(store, None, 2) == [b"4", b"3"]
        await write(store, b"5")
        assert listed(store, ids[3], 2) == [b"2", b"1"]
        assert listed(store, ids[0], 2) == []
        assert store.has_stream_message(SCOPE, "f", ids[0])
        assert not store.has_stream_message(SCOPE, "g", ids[0])


async def test_a_full_scope_is_trimmed_to_four_fifths_over_all_its_flows(tmp_path: Path) -> None:
    charge = charge_of(b"", "f", "#A-1")
    capacity = charge * 10
    async with opened(tmp_path) as store:
        for number in range(8):
            await write(store, b"", "f" if number % 2 else "g", capacity=capacity)
        assert len(read_all(store, "f")) + len(read_all(store, "g")) == 8
        await write(store, b"", capacity=capacity)  # nine tenths are full now
        assert len(read_all(store, "g")) == 3
        assert len(read_all(store, "f")) == 5


async def test_trimming_goes_on_after_a_restart(tmp_path: Path) -> None:
    capacity = charge_of(b"", "f", "#A-1") * 10
    left: list[int] = []
    for _ in range(4):
        async with opened(tmp_path) as store:
            for _ in range(5):
                await write(store, b"", capacity=capacity)
            left.append(len(read_all(store)))
    assert left == [5, 8, 8, 8]


async def test_the_newest_message_is_never_trimmed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await write(store, b"old")
        await write(store, b"x" * 1_000, capacity=1_000 + MESSAGE_OVERHEAD + 5)
        assert read_all(store) == [b"x" * 1_000]


async def test_a_message_larger_than_the_capacity_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await write(store, b"old")
        with pytest.raises(StreamCapacityError):
            store.append_stream_message(
                SCOPE, "f", value=b"x" * 1_000, source="s", created_at=0.0, capacity=1_000
            )
        assert read_all(store) == [b"old"]


async def test_a_reader_never_sees_a_message_that_is_not_durable(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        _, ticket = store.append_stream_message(
            SCOPE, "f", value=b"1", source="s", created_at=0.0, capacity=PLENTY
        )
        assert read_all(store) == []
        await ticket.wait()
        assert read_all(store) == [b"1"]
