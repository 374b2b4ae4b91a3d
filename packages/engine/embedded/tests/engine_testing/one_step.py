"""A flow whose first Step goes to one other, with the options that a test is about."""

from __future__ import annotations

from datetime import timedelta

from dex import AsyncContext, RetryPolicy, StepDecision, StepMovement, StepOptions, go_to_many

from engine_testing.probe import Alpha, Script

SECOND = timedelta(seconds=1)
ONCE = RetryPolicy(maximum_attempts=1)
QUICK = RetryPolicy(initial_interval=SECOND, maximum_attempts=5)


def first(options: StepOptions, step: type[Alpha] = Alpha, given: str = "in") -> Script:
    """A flow whose first Step goes to another with these options."""

    async def start(context: AsyncContext, _given: str) -> StepDecision:
        return go_to_many(StepMovement.of(step, given, options=options))

    return Script(execute={"Start": start})
