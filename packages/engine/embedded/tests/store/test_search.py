from __future__ import annotations

from pathlib import Path

import pytest
from kernel_testing import start_with
from store_testing import StoredFlow, opened

from dex_embedded._kernel.errors import InvalidRequestError, UnsupportedError
from dex_embedded._kernel.inputs import SetAttributes, StopFlow
from dex_embedded._kernel.values import AttributeWrite, IndexType, IndexWrite, StopType
from dex_embedded._store.errors import IndexTypeConflictError
from dex_embedded._store.protocol import FoundRun
from dex_embedded._store.sqlite import SqliteStore

TYPES = {
    "City": IndexType.KEYWORD,
    "Age": IndexType.INT,
    "Score": IndexType.DOUBLE,
    "Open": IndexType.BOOL,
    "Tags": IndexType.KEYWORD_ARRAY,
    "Due": IndexType.DATETIME,
}

Indexed = dict[str, str | int | float | bool | tuple[str, ...] | None]


def index(flow: StoredFlow, values: Indexed) -> None:
    flow.feed(
        SetAttributes(
            writes=tuple(
                AttributeWrite(
                    key=key,
                    value=b"x" if value is not None else None,
                    index=IndexWrite(index_key=key, type=TYPES[key], value=value),
                )
                for key, value in values.items()
            ),
            request_id=f"index {len(flow.events)}",
        )
    )


async def populate(store: SqliteStore) -> None:
    await store.declare_indexes(TYPES).wait()
    people: list[tuple[str, Indexed]] = [
        ("ann", {"City": "Rome", "Age": 30, "Open": True, "Tags": ("a", "b"), "Score": 1.5}),
        ("bob", {"City": "Oslo", "Age": 40, "Open": False, "Tags": ("b",), "Due": 1_000_000.0}),
        ("cid", {"City": 'Ro"me', "Age": 50}),
        ("dan", {}),
    ]
    for number, (name, values) in enumerate(people):
        flow = StoredFlow(store, start_with(flow_id=name))
        flow.now += number
        index(flow, values)
        if name == "cid":
            flow.feed(StopFlow(type=StopType.FAIL))
        await flow.durable()


def ids(runs: tuple[FoundRun, ...]) -> list[str]:
    return [run.summary.flow_id for run in runs]


def find(store: SqliteStore, query: str) -> list[str]:
    return ids(store.search(query, limit=100, after="", include_continued=False).runs)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "dan cid bob ann"),
        ("   ", "dan cid bob ann"),
        ("FlowType = 'Flow'", "dan cid bob ann"),
        ("FlowType = 'Other'", ""),
        ("ExecutionStatus = 'Running'", "dan bob ann"),
        ("ExecutionStatus IN ('Failed', 'canceled')", "cid"),
        ("ExecutionStatus = 'TimedOut'", ""),
        ("WorkflowId = 'bob'", "bob"),
        ("FlowId STARTS_WITH 'a'", "ann"),
        ("CloseTime IS NULL", "dan bob ann"),
        ("CloseTime IS NOT NULL", "cid"),
        ("StartTime >= '1970-01-01T00:16:40Z'", "dan cid bob ann"),
        ("StartTime < '1970-01-01T00:16:40+00:00'", ""),
        ("City = 'Rome'", "ann"),
        ('City = "Ro\\"me"', "cid"),
        ("`City` = 'Oslo'", "bob"),
        ("City != 'Rome'", "cid bob"),
        ("NOT City = 'Rome'", "cid bob"),
        ("NOT (City = 'Rome' OR Age = 40)", "cid"),
        ("NOT NOT City = 'Rome'", "ann"),
        ("City IN ('Rome', 'Oslo')", "bob ann"),
        ("City NOT IN ('Rome', 'Oslo')", "cid"),
        ("City STARTS_WITH 'Ro'", "cid ann"),
        ("City IS NULL", "dan"),
        ("Age > 30 AND Age <= 50", "cid bob"),
        ("Age BETWEEN 30 AND 40", "bob ann"),
        ("Age = 30.0", "ann"),
        ("Score < 2", "ann"),
        ("Open = true", "ann"),
        ("Open = FALSE", "bob"),
        ("Tags = 'b'", "bob ann"),
        ("Tags != 'a'", "bob"),
        ("NOT Tags = 'a'", "bob"),
        ("Due > '1970-01-01T00:00:00Z'", "bob"),
        ("Age = 30 OR Age = 40 AND City = 'Rome'", "ann"),
        ("(Age = 30 OR Age = 40) AND City = 'Oslo'", "bob"),
        ("age_is_not_a_field_but_City_is = 'x' ", None),
        ("DexParentFlowID IS NULL", "dan cid bob ann"),
        ("City = 'Rome' and Open = True", "ann"),
    ],
)
async def test_queries_find_what_they_say(tmp_path: Path, query: str, expected: str | None) -> None:
    async with opened(tmp_path) as store:
        await populate(store)
        if expected is None:
            with pytest.raises(InvalidRequestError, match="unknown search field"):
                find(store, query)
        else:
            assert find(store, query) == expected.split()


@pytest.mark.parametrize(
    "query",
    [
        "City",
        "City =",
        "City = Rome",
        "= 'Rome'",
        "City = 'Rome' AND",
        "City = 'Rome' 'Oslo'",
        "(City = 'Rome'",
        "City IN ()",
        "City NOT 'x'",
        "City IS 'x'",
        "City LIKE 'x'",
        "City = 'unfinished",
        "City = 'x'; DROP TABLE run",
        "Age = 'x'",
        "Age = true",
        "City = 5",
        "Open = 'x'",
        "Due = 'yesterday'",
        "Due = '2026-01-01T00:00:00'",
        "ExecutionStatus = 'Sleeping'",
        "Tags > 'a'",
        "Age STARTS_WITH '1'",
        "Age BETWEEN 1",
        "NOT " * 100 + "City = 'x'",
        "City = 'x' OR " * 2_000 + "City = 'x'",
        "\x00",
    ],
)
async def test_a_malformed_query_is_refused(tmp_path: Path, query: str) -> None:
    async with opened(tmp_path) as store:
        await store.declare_indexes(TYPES).wait()
        with pytest.raises(InvalidRequestError):
            find(store, query)


async def test_a_field_that_is_not_kept_is_refused_by_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(UnsupportedError, match="ActiveStepTypes"):
            find(store, "ActiveStepTypes = 'A'")


async def test_pages_return_each_run_once_newest_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await populate(store)
        seen: list[str] = []
        after = ""
        while True:
            page = store.search("", limit=3, after=after, include_continued=False)
            seen.extend(ids(page.runs))
            after = page.next
            if not after:
                break
        assert seen == ["dan", "cid", "bob", "ann"]
        for foreign in ("x", "1", "a:b", "1.0:x"):
            with pytest.raises(InvalidRequestError):
                store.search("", limit=3, after=foreign, include_continued=False)


async def test_found_runs_carry_their_indexed_values(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await populate(store)
        [ann] = store.search("FlowId='ann'", limit=1, after="", include_continued=False).runs
        assert {entry.index_key: entry.value for entry in ann.indexed} == {
            "Age": 30,
            "City": "Rome",
            "Open": True,
            "Score": 1.5,
            "Tags": ("a", "b"),
        }


async def test_a_null_write_clears_the_index_and_a_new_value_replaces_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.declare_indexes(TYPES).wait()
        flow = StoredFlow(store, start_with(flow_id="ann"))
        index(flow, {"City": "Rome"})
        index(flow, {"City": "Oslo"})
        await flow.durable()
        assert find(store, "City = 'Rome'") == []
        assert find(store, "City = 'Oslo'") == ["ann"]
        index(flow, {"City": None})
        await flow.durable()
        assert find(store, "City IS NULL") == ["ann"]


async def test_index_keys_keep_their_type_over_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.declare_indexes({"City": IndexType.KEYWORD}).wait()
        await store.declare_indexes({"City": IndexType.KEYWORD, "Age": IndexType.INT}).wait()
    async with opened(tmp_path) as store:
        with pytest.raises(IndexTypeConflictError) as caught:
            store.declare_indexes({"New": IndexType.BOOL, "Age": IndexType.TEXT})
        assert caught.value.index_key == "Age"
        assert store.index_types() == {"City": IndexType.KEYWORD, "Age": IndexType.INT}
