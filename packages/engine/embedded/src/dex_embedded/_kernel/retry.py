"""Limits of a method's attempts and what follows from a failed one.

Rules: defaults as the protocol documents them; the total duration bounds the whole invocation, a
running attempt included (`CUT_RUNNING_ATTEMPT`); time a retry waits for a worker is not part of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dex_embedded._kernel.state import Invocation
from dex_embedded._kernel.values import (
    Durability,
    Failure,
    FailureKind,
    MethodOptions,
    RetryPolicy,
    StepOptions,
)

DEFAULT_METHOD_TIMEOUT = 2 * 60 * 60
DEFAULT_HEARTBEAT_TIMEOUT = 60
DEFAULT_INITIAL_INTERVAL = 1
DEFAULT_BACKOFF_COEFFICIENT = 2.0
DEFAULT_MAXIMUM_INTERVAL = 100
DEFAULT_TOTAL_DURATION = 4 * 60 * 60

CUT_RUNNING_ATTEMPT = True
"""Whether the end of the total duration also ends a running attempt, not only the retries."""

ASYNC_GRACE = 7.0
"""An ASYNC method is not timed out in the first seconds after its first hand-out."""

FREE_REOFFERS = 3
"""Offers of one retryable attempt that may end without a frame before one counts."""

_FINAL_KINDS = frozenset({FailureKind.TOO_LARGE, FailureKind.UNSUPPORTED})


def effective_retry(policy: RetryPolicy) -> RetryPolicy:
    """The policy with the defaults filled in."""
    return RetryPolicy(
        initial_interval=policy.initial_interval or DEFAULT_INITIAL_INTERVAL,
        backoff_coefficient=policy.backoff_coefficient or DEFAULT_BACKOFF_COEFFICIENT,
        maximum_interval=policy.maximum_interval or DEFAULT_MAXIMUM_INTERVAL,
        maximum_attempts=policy.maximum_attempts,
        total_duration=policy.total_duration or DEFAULT_TOTAL_DURATION,
    )


def effective_timeout(options: MethodOptions) -> int:
    """Seconds one attempt may take."""
    return options.timeout or DEFAULT_METHOD_TIMEOUT


def effective_heartbeat_timeout(options: StepOptions) -> int:
    """Seconds one attempt may stay silent."""
    return options.heartbeat_timeout or DEFAULT_HEARTBEAT_TIMEOUT


def effective_durability(options: MethodOptions, default: Durability) -> Durability:
    """The method's own setting, else the flow's, else SYNC."""
    for setting in (options.durability, default):
        if setting is not Durability.UNSPECIFIED:
            return setting
    return Durability.SYNC


def is_single_attempt(options: MethodOptions) -> bool:
    """Whether a second run of the method is never allowed."""
    return options.retry.maximum_attempts == 1


def backoff(policy: RetryPolicy, attempt: int) -> float:
    """Seconds between the failed attempt and the next one.

    Args:
        policy: With defaults filled in.
        attempt: The attempt that failed, from 1.
    """
    try:
        grown = policy.initial_interval * math.pow(policy.backoff_coefficient, attempt - 1)
    except OverflowError:
        return policy.maximum_interval
    return min(grown, policy.maximum_interval)


def budget_end(invocation: Invocation, policy: RetryPolicy) -> float:
    """When the total duration of the invocation is spent; infinite before its first hand-out."""
    if invocation.first_attempt_at is None:
        return math.inf
    return invocation.first_attempt_at + policy.total_duration + invocation.waited


def attempt_deadline(
    invocation: Invocation, options: MethodOptions, durability: Durability, now: float
) -> float:
    """When an attempt handed out now has to end."""
    end = now + effective_timeout(options)
    first = invocation.first_attempt_at if invocation.first_attempt_at is not None else now
    if durability is Durability.ASYNC:
        end = max(end, first + ASYNC_GRACE)
    if CUT_RUNNING_ATTEMPT:
        policy = effective_retry(options.retry)
        end = min(end, first + policy.total_duration + invocation.waited)
    return end


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after this many seconds."""

    delay: float


def retry_after(
    failure: Failure, invocation: Invocation, options: MethodOptions, now: float
) -> Retry | None:
    """Whether and when a failed attempt is tried again; None when the failure is final."""
    policy = effective_retry(options.retry)
    if failure.kind in _FINAL_KINDS:
        return None
    if policy.maximum_attempts and invocation.attempt >= policy.maximum_attempts:
        return None
    if failure.kind is FailureKind.WORKER_LOST:
        delay = 0.0  # the fault was not the handler's, so there is nothing to give time to
    elif failure.retry_after > 0:
        delay = float(failure.retry_after)
    else:
        delay = backoff(policy, invocation.attempt)
    if now + delay >= budget_end(invocation, policy):
        return None
    return Retry(delay)
