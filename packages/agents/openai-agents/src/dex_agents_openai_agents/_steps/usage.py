"""Usage of one model Step or tool Step, from the framework's counters."""

from __future__ import annotations

from dataclasses import dataclass

from agents import Usage

from dex_agents import AgentUsage


@dataclass(frozen=True)
class UsageMark:
    """The counters at one moment. They only grow, and a resumed run starts where it stopped."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def of(cls, usage: Usage) -> UsageMark:
        """Read the counters; absent detail counts as zero."""
        return cls(
            usage.requests,
            usage.input_tokens,
            usage.output_tokens,
            usage.total_tokens,
            usage.input_tokens_details.cached_tokens or 0,
            usage.output_tokens_details.reasoning_tokens or 0,
        )


def usage_since(before: UsageMark, usage: Usage, responses: int = 0) -> AgentUsage:
    """Return what was used after `before`.

    Args:
        before: Counters at the start of the Step.
        usage: The counters now.
        responses: Model responses received since; counts as calls for a model without counters.
    """
    after = UsageMark.of(usage)
    return AgentUsage(
        model_calls=max(after.requests - before.requests, responses),
        input_tokens=after.input_tokens - before.input_tokens,
        output_tokens=after.output_tokens - before.output_tokens,
        total_tokens=after.total_tokens - before.total_tokens,
        cached_input_tokens=after.cached_tokens - before.cached_tokens,
        reasoning_tokens=after.reasoning_tokens - before.reasoning_tokens,
    )
