"""Options of the Steps: one base, and what each kind of Step adds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from dex import RetryPolicy, StepDurability, StepOptions

from dex_agents.options import StepLimits

#: A Step without a failure route must not end the session because of a long outage.
_PATIENT: Final = RetryPolicy(total_duration=timedelta(days=30))

#: Options that every Step starts from. Durability is explicit, so that a Flow configured for
#: asynchronous durability never replays a Step's result.
BASE_OPTIONS: Final = StepOptions(
    heartbeat_timeout=timedelta(minutes=2),
    wait_for_retry=_PATIENT,
    execute_retry=_PATIENT,
    wait_for_durability=StepDurability.SYNC,
    execute_durability=StepDurability.SYNC,
)


def limited_options(
    limits: StepLimits, max_attempts: int, total_duration: timedelta | None = None
) -> StepOptions:
    """Return the options of a Step that calls a model or a tool.

    Args:
        limits: Times of the Step.
        max_attempts: Most attempts.
        total_duration: Most time over all attempts, if other than the limits say.
    """
    return replace(
        BASE_OPTIONS,
        execute_method_timeout=limits.timeout,
        heartbeat_timeout=limits.heartbeat_timeout,
        execute_retry=RetryPolicy(
            maximum_attempts=max_attempts,
            total_duration=total_duration or limits.total_duration,
        ),
    )
