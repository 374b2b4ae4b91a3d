"""How much of a session one reply to a caller holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dex_agents._session.history import MessageSizes
from dex_agents.values import AgentToolCall

#: Stored bytes of messages in one reply at most; engines refuse replies of more than 3.5 MiB.
MAX_REPLY_BYTES: Final = 2_000_000
#: Most messages of one page, and of one snapshot.
MAX_PAGE_MESSAGES: Final = 200
#: Characters of a tool's output that a snapshot shows.
SNAPSHOT_OUTPUT_CHARACTERS: Final = 2000


def clamp_page_limit(limit: int) -> int:
    """Return a page limit between 1 and `MAX_PAGE_MESSAGES`."""
    return max(1, min(MAX_PAGE_MESSAGES, limit))


def cut_for_snapshot(record: AgentToolCall) -> AgentToolCall:
    """Return a record with a short output and without the adapter's own data."""
    output = record.output
    is_long = output is not None and len(output) > SNAPSHOT_OUTPUT_CHARACTERS
    return replace(
        record,
        output=output[:SNAPSHOT_OUTPUT_CHARACTERS] if output is not None else None,
        framework_payload=None,
        is_output_cut=record.is_output_cut or is_long,
    )


def known_sizes(sizes: MessageSizes, after: int, last: int) -> tuple[int, ...]:
    """Return the sizes of messages `after + 1` to `last`, up to the first unknown one."""
    known: list[int] = []
    for sequence in range(after + 1, last + 1):
        size = sizes.of(sequence)
        if size is None:
            break
        known.append(size)
    return tuple(known)


def take_while_fitting(first: int, sizes: Sequence[int], limit: int = MAX_REPLY_BYTES) -> list[int]:
    """Return the sequences from `first` on whose sizes fit; at least one if there is any."""
    chosen: list[int] = []
    used = 0
    for offset, size in enumerate(sizes):
        used += size
        if chosen and used > limit:
            break
        chosen.append(first + offset)
    return chosen
