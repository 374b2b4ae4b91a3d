"""How much of a session's history one task may carry, and which keys that is.

Every task is one message to a worker, and engines refuse messages above 3.5 MiB. Messages and final
records never change once stored, so a worker keeps decoded ones and asks only for what it lacks. A
model Step that lands on a worker which lacks more than one task can carry hands itself on, with the
next part to load, until the worker has everything.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from dex_agents._internal_values import (
    AgentMessageSizes,
    AgentSessionIndex,
    ModelStepBudget,
    ToolCallEntry,
)
from dex_agents.values import AgentToolCall, ToolCallCompleted

#: Stored bytes that one task loads at most, attributes not counted.
MAX_LOAD_BYTES: Final = 3_000_000
#: Stored bytes of the newest messages that a model Step always loads. A worker that lacks no more
#: needs no task of its own to load them; a warm one pays for them on every call.
NEWEST_BYTES: Final = 16 * 1024
#: What a loaded entry costs besides its value: its key, in the task and in the echo of the request.
KEY_BYTES: Final = 100
#: Messages in one sealed block of sizes.
BLOCK_MESSAGES: Final = 500
#: Sizes of the newest messages that the index keeps at least: one snapshot's worth.
INDEXED_MESSAGES: Final = 200
#: Most bytes of one message, record or result, so that any task has room for one that lacks.
MAX_ITEM_BYTES: Final = 1_000_000
#: Sealed blocks of sizes one task loads at most.
MAX_BLOCKS_PER_TASK: Final = 200
#: What one sealed block costs at most, as stored.
BLOCK_BYTES: Final = 5_000
#: Hops after which a part of the history counts as unreachable.
HOPS_PER_RANGE: Final = 3


# --- the index ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexedAppend:
    """The index after messages were appended.

    Attributes:
        index: The new index.
        sealed: Blocks that became full, with the sequence of their first message.
    """

    index: AgentSessionIndex
    sealed: tuple[tuple[int, AgentMessageSizes], ...]


def append_sizes(index: AgentSessionIndex, count: int, new_bytes: Sequence[int]) -> IndexedAppend:
    """Add the sizes of new messages to the index, and seal the blocks that became full.

    Args:
        index: Index before.
        count: Number of stored messages before.
        new_bytes: Sizes of the new messages, oldest first.
    """
    tail = list(index.message_bytes) + list(new_bytes)
    total = count + len(new_bytes)
    tail_start = total - len(tail) + 1
    sealed: list[tuple[int, AgentMessageSizes]] = []
    blocks = index.sealed_blocks
    while total - blocks * BLOCK_MESSAGES >= BLOCK_MESSAGES:
        first = blocks * BLOCK_MESSAGES + 1
        at = first - tail_start
        sealed.append((first, AgentMessageSizes(tuple(tail[at : at + BLOCK_MESSAGES]))))
        blocks += 1
    keep = max(INDEXED_MESSAGES, total - blocks * BLOCK_MESSAGES)
    return IndexedAppend(
        replace(index, message_bytes=tuple(tail[-keep:]), sealed_blocks=blocks), tuple(sealed)
    )


def add_tool_calls(
    index: AgentSessionIndex, records: Sequence[AgentToolCall], record_bytes: Sequence[int]
) -> AgentSessionIndex:
    """Add the calls of one model response to the index."""
    entries = tuple(
        ToolCallEntry(record.tool_call_id, size)
        for record, size in zip(records, record_bytes, strict=True)
    )
    return replace(index, tool_calls=index.tool_calls + entries, round_start=len(index.tool_calls))


def finish_tool_calls(
    index: AgentSessionIndex, completed: Sequence[ToolCallCompleted]
) -> AgentSessionIndex:
    """Put the sizes of final records into the index."""
    sizes = {message.tool_call_id: message for message in completed}
    return replace(
        index,
        tool_calls=tuple(
            ToolCallEntry(
                entry.tool_call_id,
                sizes[entry.tool_call_id].record_bytes or entry.record_bytes,
                sizes[entry.tool_call_id].output_bytes,
            )
            if entry.tool_call_id in sizes
            else entry
            for entry in index.tool_calls
        ),
    )


def without_turn(index: AgentSessionIndex) -> AgentSessionIndex:
    """Return the index after a turn has ended."""
    return replace(index, tool_calls=(), counted_tool_calls=0, round_start=0)


def count_usage(index: AgentSessionIndex) -> AgentSessionIndex:
    """Mark the usage of all calls of the turn as added to the session's total."""
    return replace(index, counted_tool_calls=len(index.tool_calls))


def round_ids(index: AgentSessionIndex) -> list[str]:
    """Return the ids of the calls of the newest model response."""
    return [entry.tool_call_id for entry in index.tool_calls[index.round_start :]]


@dataclass(frozen=True)
class MessageSizes:
    """Sizes of stored messages, as far as they are known.

    Attributes:
        count: Number of stored messages.
        index: The session's index.
        blocks: Sizes of sealed blocks by block number, as far as a worker or client has them.
    """

    count: int
    index: AgentSessionIndex
    blocks: Mapping[int, AgentMessageSizes]

    def of(self, sequence: int) -> int | None:
        """Return the size of a message, or `None` when its block is not at hand."""
        at = sequence - (self.count - len(self.index.message_bytes) + 1)
        if at >= 0:
            return self.index.message_bytes[at] if at < len(self.index.message_bytes) else None
        block = self.blocks.get(block_of(sequence))
        if block is None:
            return None
        return block.message_bytes[(sequence - 1) % BLOCK_MESSAGES]


def block_of(sequence: int) -> int:
    """Return the number of the block a message belongs to, from 0."""
    return (sequence - 1) // BLOCK_MESSAGES


def block_start(block: int) -> int:
    """Return the sequence of the first message of a block."""
    return block * BLOCK_MESSAGES + 1


def newest_messages(sizes: MessageSizes, limit_bytes: int, limit_count: int) -> list[int]:
    """Return the newest messages that fit, oldest first; at least one if there is any."""
    chosen: list[int] = []
    total = 0
    for sequence in range(sizes.count, 0, -1):
        size = sizes.of(sequence)
        if size is None or len(chosen) >= limit_count:
            break
        total += size + KEY_BYTES
        if chosen and total > limit_bytes:
            break
        chosen.append(sequence)
    chosen.reverse()
    return chosen


# --- loads of a model Step ----------------------------------------------------------------------


@dataclass(frozen=True)
class CachedKeys:
    """What a worker holds of one session.

    Attributes:
        messages: Sequences of messages beyond `prefix`.
        blocks: Sealed blocks of sizes, by number.
        records: Ids of tool calls whose final record is here.
        outputs: Ids of tool calls whose separate result is here.
        prefix: Number of messages that are here from the first one on.
    """

    messages: Container[int]
    blocks: Mapping[int, AgentMessageSizes]
    records: Container[str]
    outputs: Container[str]
    prefix: int = 0


@dataclass(frozen=True)
class ModelLoads:
    """What a task for a model Step loads.

    Attributes:
        messages: Sequences of messages.
        blocks: Numbers of sealed blocks of sizes.
        records: Ids of tool calls whose record is loaded.
        outputs: Ids of tool calls whose separate result is loaded.
        is_complete: Whether this is all that the worker lacks.
        ranges: How many tasks it takes to load the rest, by what is known now.
    """

    messages: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    records: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    is_complete: bool = True
    ranges: int = 1


def plan_loads(
    count: int,
    index: AgentSessionIndex,
    cached: CachedKeys,
    *,
    for_any_worker: bool,
    limit: int = MAX_LOAD_BYTES,
    newest_bytes: int = NEWEST_BYTES,
) -> ModelLoads:
    """Choose what the next task of a model Step loads.

    Args:
        count: Number of stored messages.
        index: The session's index.
        cached: What this worker holds.
        for_any_worker: Load everything when it fits, so that whichever worker gets the task can
            make the model call. Used when a Step landed on a worker that lacked something.
        limit: Most bytes to load.
        newest_bytes: Bytes of newest messages to load in any case.
    """
    sizes = MessageSizes(count, index, cached.blocks)
    newest = newest_messages(sizes, newest_bytes, count)
    first_newest = newest[0] if newest else count + 1
    records = [e for e in index.tool_calls if e.tool_call_id not in cached.records]
    outputs = [
        e for e in index.tool_calls if e.output_bytes and e.tool_call_id not in cached.outputs
    ]
    older = [s for s in range(cached.prefix + 1, first_newest) if s not in cached.messages]
    unknown = sorted({block_of(s) for s in older if sizes.of(s) is None})
    if not unknown and for_any_worker:
        whole = sum((sizes.of(s) or 0) + KEY_BYTES for s in range(1, count + 1)) + sum(
            e.record_bytes + e.output_bytes + 2 * KEY_BYTES for e in index.tool_calls
        )
        if whole <= limit:
            return ModelLoads(
                tuple(range(1, count + 1)),
                (),
                tuple(e.tool_call_id for e in index.tool_calls),
                tuple(e.tool_call_id for e in index.tool_calls if e.output_bytes),
            )
    return _fill(sizes, newest, older, unknown, records, outputs, limit)


def _fill(
    sizes: MessageSizes,
    newest: list[int],
    older: list[int],
    unknown: list[int],
    records: list[ToolCallEntry],
    outputs: list[ToolCallEntry],
    limit: int,
) -> ModelLoads:
    """Fill one task: the newest messages, the turn's calls, then older messages by age."""
    blocks = unknown[:MAX_BLOCKS_PER_TASK]
    used = sum((sizes.of(s) or 0) + KEY_BYTES for s in newest) + len(blocks) * BLOCK_BYTES
    room = max(1, limit - used)
    left = 0
    chosen_records: list[str] = []
    chosen_outputs: list[str] = []
    chosen: list[int] = []

    def fits(size: int) -> bool:
        nonlocal used, left
        if used + size + KEY_BYTES > limit:
            left += size + KEY_BYTES
            return False
        used += size + KEY_BYTES
        return True

    for entry in records:
        if fits(entry.record_bytes):
            chosen_records.append(entry.tool_call_id)
    for entry in outputs:
        if fits(entry.output_bytes):
            chosen_outputs.append(entry.tool_call_id)
    for sequence in older:
        size = sizes.of(sequence)
        if size is not None and fits(size):
            chosen.append(sequence)
    tasks_for_sizes = math.ceil(len(unknown) / MAX_BLOCKS_PER_TASK)
    return ModelLoads(
        (*chosen, *newest),
        tuple(blocks),
        tuple(chosen_records),
        tuple(chosen_outputs),
        is_complete=left == 0 and not unknown,
        ranges=1 + math.ceil(left / room) + tasks_for_sizes,
    )


# --- handing on ---------------------------------------------------------------------------------


def next_budget(
    previous: ModelStepBudget | None,
    attempt: int,
    first_attempt_at: datetime,
    ranges: int,
    sizes_known: bool,
) -> ModelStepBudget:
    """Return the budget of a model Step that hands itself on.

    Earlier attempts of this Step may have made the model call, so they stay counted; the attempt
    that hands on has made none.

    Args:
        previous: Budget it was handed, if any.
        attempt: Attempt of this Step, from 1.
        first_attempt_at: When the first attempt of this Step began.
        ranges: Tasks it takes to load the rest.
        sizes_known: Whether `ranges` is final, that is, all sizes are known.
    """
    hops = 1 if previous is None else previous.hops + 1
    if previous is not None and previous.max_hops:
        max_hops = previous.max_hops
    else:
        max_hops = hops - 1 + HOPS_PER_RANGE * ranges if sizes_known else 0
    return ModelStepBudget(
        attempt - 1 + (0 if previous is None else previous.attempts_used),
        first_attempt_at if previous is None else previous.first_attempt_at,
        hops,
        max_hops,
    )


def may_hop(budget: ModelStepBudget, ranges: int) -> bool:
    """Whether a model Step may hand itself on once more."""
    return budget.hops <= (budget.max_hops or HOPS_PER_RANGE * max(1, ranges))
