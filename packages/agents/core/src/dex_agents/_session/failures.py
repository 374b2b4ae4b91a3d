"""What a failed model call means: try again, try again later, or fail the turn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from dex_agents._session.text import bound_bytes, describe_error, error_text
from dex_agents.errors import ModelError, RunnerContractError, TurnFailedError
from dex_agents.values import PendingTurnFailure


@dataclass(frozen=True)
class FailTurn:
    """The turn fails now, without another attempt."""

    failure: PendingTurnFailure


@dataclass(frozen=True)
class RetryModelCall:
    """The attempt fails; the Step's retry policy decides about the next one.

    Attributes:
        text: What the attempt reports.
        delay: Whole seconds to wait before the next attempt, or `None` for the usual back-off.
    """

    text: str
    delay: int | None = None


@dataclass(frozen=True)
class ModelRetryWindow:
    """How much the model call may still do.

    Attributes:
        now: The worker's clock.
        first_attempt_at: When the first attempt began.
        duration: Most time over all attempts.
        attempts_left: Attempts after the one that just failed.
    """

    now: datetime
    first_attempt_at: datetime
    duration: timedelta
    attempts_left: int

    @property
    def seconds_left(self) -> float:
        """Seconds in which another attempt may still begin."""
        return (self.first_attempt_at + self.duration - self.now).total_seconds()


def judge_model_error(error: Exception, window: ModelRetryWindow) -> FailTurn | RetryModelCall:
    """Decide what an exception of the runner means for the turn."""
    if isinstance(error, TurnFailedError):
        return FailTurn(turn_failure(error.error_type, error.message))
    if isinstance(error, RunnerContractError):
        return FailTurn(turn_failure(type(error).__name__, error_text(error)))
    if not isinstance(error, ModelError):
        return RetryModelCall(describe_error(error))
    text = bound_bytes(f"{error.error_type}: {error.message}")
    delay = whole_seconds(error.retry_after)
    if delay is None or window.attempts_left <= 0:
        return RetryModelCall(text)
    if delay >= window.seconds_left:
        left = max(0, math.floor(window.seconds_left))
        return FailTurn(
            turn_failure(
                error.error_type,
                f"{error.message} (the provider asks to wait {delay} s, but only {left} s are "
                "left for this model call)",
            )
        )
    return RetryModelCall(text, delay)


def turn_failure(error_type: str, message: str) -> PendingTurnFailure:
    """Return a failure whose parts can be stored and shown."""
    return PendingTurnFailure(bound_bytes(message), bound_bytes(error_type, 200))


def describe_turn_failure(failure: PendingTurnFailure) -> str:
    """Return what `AgentState.last_turn_error` says about a failure."""
    if failure.error_type:
        return f"{failure.error_type}: {failure.message}"
    return failure.message


def whole_seconds(seconds: float | None) -> int | None:
    """Return a delay the engine can keep: rounded up, at least one second; `None` for no delay."""
    if seconds is None or not math.isfinite(seconds):
        return None
    return max(1, math.ceil(seconds))
