"""What follows from an answer to an approval, or from none."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from dex_agents._session.text import MAX_TOOL_ERROR_BYTES, bound_bytes
from dex_agents.values import (
    AgentInterrupt,
    AgentInterruptResolution,
    AgentToolCall,
    ToolCallStatus,
)

EXPIRED = "Nobody answered in time."


class ApprovalResult(Enum):
    """What `AwaitToolApproval` does next."""

    RUN = auto()
    """The call may run."""
    REJECTED = auto()
    """The record is final: a person said no."""
    EXPIRED = auto()
    """The record is final: nobody answered before the deadline."""
    WAIT = auto()
    """Wait again: the timer was early, or the answer is on its way."""
    DONE = auto()
    """The record was final already."""


@dataclass(frozen=True)
class ApprovalDecision:
    """What follows, and the record to store (unchanged for `WAIT` and `DONE`)."""

    result: ApprovalResult
    record: AgentToolCall


def decide_approval(
    record: AgentToolCall,
    interrupt: AgentInterrupt | None,
    resolution: AgentInterruptResolution | None,
    now: datetime,
) -> ApprovalDecision:
    """Decide what an ended wait means.

    Args:
        record: Record of the call that waits.
        interrupt: Its interrupt while it is unanswered, else `None`.
        resolution: The answer, if the wait ended with one.
        now: The worker's clock.
    """
    if record.status.is_final:
        return ApprovalDecision(ApprovalResult.DONE, record)
    if resolution is not None:
        if resolution.approved:
            return ApprovalDecision(
                ApprovalResult.RUN, replace(record, status=ToolCallStatus.APPROVED)
            )
        return ApprovalDecision(
            ApprovalResult.REJECTED, _reject(record, resolution.rejection_message)
        )
    if interrupt is not None and interrupt.deadline is not None and now >= interrupt.deadline:
        return ApprovalDecision(ApprovalResult.EXPIRED, _reject(record, EXPIRED))
    return ApprovalDecision(ApprovalResult.WAIT, record)


def _reject(record: AgentToolCall, message: str | None) -> AgentToolCall:
    kept = None if message is None else bound_bytes(message, MAX_TOOL_ERROR_BYTES)
    return replace(record, status=ToolCallStatus.REJECTED, rejection_message=kept)


def find_interrupt(interrupts: Iterable[AgentInterrupt], wanted: str) -> AgentInterrupt | None:
    """Return the pending interrupt with this id, or `None` when it is not pending."""
    return next((found for found in interrupts if found.interrupt_id == wanted), None)


def without_interrupt(interrupts: Iterable[AgentInterrupt], answered: str) -> list[AgentInterrupt]:
    """Return the interrupts that are still pending once this one is answered."""
    return [kept for kept in interrupts if kept.interrupt_id != answered]


def is_open(interrupt: AgentInterrupt, now: datetime) -> bool:
    """Whether an answer is still accepted: an interrupt closes at its deadline."""
    return interrupt.deadline is None or now < interrupt.deadline


def timer_until(deadline: datetime, now: datetime) -> timedelta:
    """Return the time left, rounded up to the whole seconds an engine can keep."""
    return timedelta(seconds=max(0, math.ceil((deadline - now).total_seconds())))
