"""Sizes and loads: the index stays right, a task stays small, and loading always ends."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex_agents._internal_values import (
    AgentMessageSizes,
    AgentSessionIndex,
    ModelStepBudget,
    ToolCallEntry,
)
from dex_agents._session.history import (
    BLOCK_BYTES,
    BLOCK_MESSAGES,
    HOPS_PER_RANGE,
    INDEXED_MESSAGES,
    KEY_BYTES,
    MAX_BLOCKS_PER_TASK,
    MAX_ITEM_BYTES,
    MAX_LOAD_BYTES,
    NEWEST_BYTES,
    CachedKeys,
    MessageSizes,
    ModelLoads,
    append_sizes,
    block_of,
    block_start,
    finish_tool_calls,
    may_hop,
    newest_messages,
    next_budget,
    plan_loads,
    round_ids,
)
from dex_agents._session.reading import known_sizes, take_while_fitting
from dex_agents.values import ToolCallCompleted

START = datetime(2026, 5, 1, tzinfo=UTC)

batches = st.lists(
    st.lists(st.integers(200, 5000), min_size=1, max_size=700), min_size=1, max_size=6
)


def indexed(sizes: list[int]) -> tuple[AgentSessionIndex, dict[int, AgentMessageSizes]]:
    """Return the index of a session that stored these messages at once, and its sealed blocks."""
    appended = append_sizes(AgentSessionIndex(), 0, sizes)
    return appended.index, {block_of(first): block for first, block in appended.sealed}


@pytest.mark.requirement("CORE-COST-10")
@given(batches)
def test_every_size_is_in_the_index_or_in_a_sealed_block(given_batches: list[list[int]]) -> None:
    index, sealed, stored = AgentSessionIndex(), dict[int, AgentMessageSizes](), list[int]()
    for batch in given_batches:
        appended = append_sizes(index, len(stored), batch)
        index, stored = appended.index, stored + batch
        for first, block in appended.sealed:
            assert block_start(block_of(first)) == first
            assert len(block.message_bytes) == BLOCK_MESSAGES
            assert block_of(first) not in sealed
            sealed[block_of(first)] = block
    sizes = MessageSizes(len(stored), index, sealed)
    assert [sizes.of(n) for n in range(1, len(stored) + 1)] == stored
    assert index.sealed_blocks == len(sealed) == len(stored) // BLOCK_MESSAGES
    assert len(index.message_bytes) >= min(len(stored), INDEXED_MESSAGES)
    assert len(index.message_bytes) < INDEXED_MESSAGES + BLOCK_MESSAGES


@given(st.lists(st.integers(1, MAX_ITEM_BYTES), max_size=60), st.integers(1, 3_000_000))
def test_the_newest_messages_fit_and_are_the_newest(stored: list[int], limit: int) -> None:
    index, blocks = indexed(stored)
    chosen = newest_messages(MessageSizes(len(stored), index, blocks), limit, 20)
    assert chosen == list(range(len(stored) - len(chosen) + 1, len(stored) + 1))
    assert len(chosen) <= 20
    assert bool(chosen) == bool(stored)
    assert len(chosen) <= 1 or sum(stored[n - 1] for n in chosen) <= limit


class Worker:
    """What one worker keeps."""

    def __init__(self) -> None:
        self.messages: set[int] = set()
        self.blocks: dict[int, AgentMessageSizes] = {}
        self.records: set[str] = set()
        self.outputs: set[str] = set()

    def keys(self) -> CachedKeys:
        return CachedKeys(self.messages, self.blocks, self.records, self.outputs)

    def take(self, loads: ModelLoads, sealed: dict[int, AgentMessageSizes]) -> None:
        self.messages.update(loads.messages)
        self.blocks.update({number: sealed[number] for number in loads.blocks})
        self.records.update(loads.records)
        self.outputs.update(loads.outputs)


def task_bytes(loads: ModelLoads, stored: list[int], index: AgentSessionIndex) -> int:
    """Return what a task carries."""
    entries = {entry.tool_call_id: entry for entry in index.tool_calls}
    return (
        sum(stored[n - 1] + KEY_BYTES for n in loads.messages)
        + sum(entries[c].record_bytes + KEY_BYTES for c in loads.records)
        + sum(entries[c].output_bytes + KEY_BYTES for c in loads.outputs)
        + len(loads.blocks) * BLOCK_BYTES
    )


histories = st.one_of(
    st.lists(st.integers(200, 3000), max_size=1500),
    st.lists(st.integers(10_000, MAX_ITEM_BYTES), max_size=60),
)
calls = st.lists(st.tuples(st.integers(200, 100_000), st.integers(0, MAX_ITEM_BYTES)), max_size=12)


@pytest.mark.requirement("CORE-COST-03")
@given(histories, calls, st.integers(1, 3), st.randoms(use_true_random=False))
def test_loading_ends_with_everything_and_no_task_is_too_large(
    stored: list[int],
    tool_calls: list[tuple[int, int]],
    workers: int,
    chance: random.Random,
) -> None:
    index, sealed = indexed(stored)
    entries = tuple(ToolCallEntry(f"c{n}", r, o) for n, (r, o) in enumerate(tool_calls))
    index = AgentSessionIndex(index.message_bytes, index.sealed_blocks, entries)
    pool = [Worker() for _ in range(workers)]
    count = len(stored)
    planner = chance.choice(pool)
    for_any_worker = False
    tasks = 0
    while True:
        loads = plan_loads(count, index, planner.keys(), for_any_worker=for_any_worker)
        assert task_bytes(loads, stored, index) <= MAX_LOAD_BYTES
        assert len(set(loads.messages)) == len(loads.messages)
        # Tasks go back to the worker that planned them, now and then to another one.
        worker = planner if chance.random() < 0.8 else chance.choice(pool)
        worker.take(loads, sealed)
        tasks += 1
        if (
            worker.messages >= set(range(1, count + 1))
            and worker.records >= {e.tool_call_id for e in entries}
            and worker.outputs >= {e.tool_call_id for e in entries if e.output_bytes}
        ):
            break
        planner, for_any_worker = worker, True
        assert tasks < 500
    if workers == 1:
        total = sum(s + KEY_BYTES for s in stored) + sum(r + o + 200 for r, o in tool_calls)
        room = MAX_LOAD_BYTES - max(NEWEST_BYTES, MAX_ITEM_BYTES) - MAX_ITEM_BYTES
        assert tasks <= 2 + math.ceil(total / room)


@pytest.mark.requirement("CORE-COST-01")
@given(st.lists(st.integers(200, 3000), min_size=1, max_size=1500), st.integers(1, 40))
def test_a_warm_worker_loads_only_what_is_new_and_the_newest(stored: list[int], new: int) -> None:
    index, sealed = indexed(stored)
    worker = Worker()
    worker.messages.update(range(1, max(0, len(stored) - new) + 1))
    worker.blocks.update(sealed)
    loads = plan_loads(len(stored), index, worker.keys(), for_any_worker=False)
    newest = newest_messages(MessageSizes(len(stored), index, sealed), NEWEST_BYTES, len(stored))
    lacking = set(range(1, len(stored) + 1)) - worker.messages
    assert set(loads.messages) == lacking | set(newest)
    assert loads.blocks == ()
    assert loads.is_complete


@pytest.mark.requirement("CORE-COST-04")
def test_a_history_that_fits_is_loaded_whole_so_that_any_worker_can_go_on() -> None:
    stored = [2000] * 1200
    index, sealed = indexed(stored)
    worker = Worker()
    worker.blocks.update(sealed)
    worker.messages.update(range(1, 900))
    loads = plan_loads(len(stored), index, worker.keys(), for_any_worker=True)
    assert loads.messages == tuple(range(1, 1201))


@pytest.mark.requirement("CORE-COST-10")
def test_a_cold_worker_asks_for_sizes_first_when_it_does_not_know_them() -> None:
    stored = [2000] * 12_000
    index, sealed = indexed(stored)
    loads = plan_loads(len(stored), index, Worker().keys(), for_any_worker=True)
    assert loads.blocks == tuple(range(24))
    assert len(sealed) == 24
    assert not loads.is_complete
    assert len(loads.blocks) <= MAX_BLOCKS_PER_TASK


@pytest.mark.requirement("CORE-COST-11")
@pytest.mark.parametrize("workers", [1, 3])
def test_ten_thousand_large_messages_load_within_the_hops_that_are_allowed(workers: int) -> None:
    chance = random.Random(workers)
    stored = [chance.randrange(500, 4000) for _ in range(10_000)]
    index, sealed = indexed(stored)
    pool = [Worker() for _ in range(workers)]
    worker, budget = pool[0], None
    while not worker.messages >= set(range(1, 10_001)):
        loads = plan_loads(10_000, index, worker.keys(), for_any_worker=budget is not None)
        assert task_bytes(loads, stored, index) <= MAX_LOAD_BYTES
        budget = next_budget(budget, 1, START, loads.ranges, not loads.blocks)
        assert may_hop(budget, loads.ranges)
        # Two of three tasks go back to the worker that asked: sticky, but not always.
        worker = worker if chance.random() < 0.67 else chance.choice(pool)
        worker.take(loads, sealed)
    assert budget is not None
    assert budget.hops >= 8


@pytest.mark.requirement("CORE-COST-06")
def test_hops_are_counted_from_when_the_sizes_are_known() -> None:
    first = next_budget(None, 1, START, 1, sizes_known=False)
    assert (first.hops, first.max_hops, first.attempts_used) == (1, 0, 0)
    second = next_budget(first, 1, START + timedelta(seconds=5), 6, sizes_known=True)
    assert (second.hops, second.max_hops) == (2, 1 + HOPS_PER_RANGE * 6)
    assert second.first_attempt_at == START
    third = next_budget(second, 1, START + timedelta(seconds=9), 4, sizes_known=True)
    assert (third.hops, third.max_hops) == (3, second.max_hops)
    assert may_hop(third, 4)
    assert not may_hop(ModelStepBudget(0, START, 20, 19), 4)
    assert not may_hop(ModelStepBudget(0, START, 4, 0), 1)


@pytest.mark.requirement("CORE-COST-05")
@given(st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_attempts_that_may_have_called_the_model_stay_counted_over_hops(
    landed_on_attempt: list[int],
) -> None:
    budget: ModelStepBudget | None = None
    for attempt in landed_on_attempt:
        budget = next_budget(budget, attempt, START, 1, sizes_known=True)
    assert budget is not None
    assert budget.attempts_used == sum(attempt - 1 for attempt in landed_on_attempt)


def test_final_sizes_replace_those_of_deferred_calls() -> None:
    index = AgentSessionIndex(
        tool_calls=(ToolCallEntry("a", 10), ToolCallEntry("b", 20)), round_start=1
    )
    index = finish_tool_calls(index, [ToolCallCompleted("b", "turn-1", 50, 9000)])
    assert index.tool_calls == (ToolCallEntry("a", 10), ToolCallEntry("b", 50, 9000))
    assert round_ids(index) == ["b"]


@pytest.mark.requirement("CORE-RPC-10")
@given(st.lists(st.integers(1, 900_000), max_size=30), st.integers(1, 500))
def test_a_page_holds_what_fits_and_at_least_one(sizes: list[int], first: int) -> None:
    chosen = take_while_fitting(first, sizes)
    assert chosen == list(range(first, first + len(chosen)))
    assert bool(chosen) == bool(sizes)
    assert len(chosen) <= 1 or sum(sizes[: len(chosen)]) <= 2_000_000
    assert len(chosen) == len(sizes) or sum(sizes[: len(chosen) + 1]) > 2_000_000


def test_sizes_of_a_page_end_at_the_first_unknown_one() -> None:
    stored = list(range(1000, 2300))
    index, sealed = indexed(stored)
    known = MessageSizes(len(stored), index, {0: sealed[0]})
    assert known_sizes(known, 490, 700) == tuple(stored[490:500])
    assert known_sizes(MessageSizes(len(stored), index, sealed), 490, 700) == tuple(stored[490:700])
    assert known_sizes(known, 1290, 1300) == tuple(stored[1290:1300])
