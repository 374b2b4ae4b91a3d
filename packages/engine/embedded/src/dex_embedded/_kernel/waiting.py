"""When a wait is over, and which messages it takes.

A wait is an ordered list of candidates; the first one whose members are all satisfied wins, and
only its members consume. ALL has one candidate with everything, ANY one per condition (timers
before channels), ANY_COMBINATION one per declared combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dex_embedded._kernel.values import ChannelCondition, WaitingCondition, WaitingType


@dataclass(frozen=True, slots=True)
class Candidate:
    """Indexes into the condition's timers and channels."""

    timers: tuple[int, ...]
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Win:
    """The winning candidate and how many messages each of its channel conditions takes.

    `minima` and `extras` run parallel to `candidate.channels`; minima are taken first.
    """

    candidate: Candidate
    minima: tuple[int, ...]
    extras: tuple[int, ...]


def minimum_of(condition: ChannelCondition) -> int:
    """Messages the condition needs. `at_most` alone needs none."""
    if condition.at_least is not None:
        return condition.at_least
    return 1 if condition.at_most is None else 0


def maximum_of(condition: ChannelCondition) -> int | None:
    """Messages the condition takes at most; None for all there are."""
    if condition.at_most is not None:
        return condition.at_most
    return 1 if condition.at_least is None else None


def candidates(condition: WaitingCondition) -> Iterator[Candidate]:
    """The candidates in the order in which they are tried."""
    every_timer = range(len(condition.timers))
    every_channel = range(len(condition.channels))
    match condition.type:
        case WaitingType.ANY_COMPLETED:
            yield from (Candidate((index,), ()) for index in every_timer)
            yield from (Candidate((), (index,)) for index in every_channel)
        case WaitingType.ANY_COMBINATION_COMPLETED:
            for ids in condition.combinations:
                yield Candidate(
                    tuple(i for i in every_timer if condition.timers[i].condition_id in ids),
                    tuple(i for i in every_channel if condition.channels[i].condition_id in ids),
                )
        case _:
            yield Candidate(tuple(every_timer), tuple(every_channel))


def is_empty(condition: WaitingCondition) -> bool:
    """Whether there is nothing to wait for."""
    return not condition.timers and not condition.channels


def choose(
    condition: WaitingCondition, fired: Sequence[bool], pending: Callable[[str], int]
) -> Win | None:
    """The candidate that wins now, if one does.

    Args:
        condition: What is waited for.
        fired: Per timer, whether it has fired or was skipped.
        pending: Number of pending messages of a channel.
    """
    for candidate in candidates(condition):
        if not all(fired[index] for index in candidate.timers):
            continue
        win = _allot(candidate, condition, pending)
        if win is not None:
            return win
    return None


def _allot(
    candidate: Candidate, condition: WaitingCondition, pending: Callable[[str], int]
) -> Win | None:
    wanted = [condition.channels[index] for index in candidate.channels]
    left = {channel.channel: pending(channel.channel) for channel in wanted}
    minima: list[int] = []
    for channel in wanted:
        need = minimum_of(channel)
        left[channel.channel] -= need
        if left[channel.channel] < 0:
            return None
        minima.append(need)
    extras: list[int] = []
    for channel, need in zip(wanted, minima, strict=True):
        most = maximum_of(channel)
        available = left[channel.channel]
        extra = available if most is None else min(available, most - need)
        left[channel.channel] -= extra
        extras.append(extra)
    return Win(candidate, tuple(minima), tuple(extras))
