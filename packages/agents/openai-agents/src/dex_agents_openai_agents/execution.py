"""What a tool may ask about the durable call it runs in."""

from __future__ import annotations

from dex_agents import DeferredToolExecution
from dex_agents_openai_agents._steps.current_call import current_call


def get_current_deferred_tool_execution() -> DeferredToolExecution | None:
    """Return the tool call that is running, for its idempotency key and attempt.

    Works in sync and async tools and in everything they start. Returns `None` outside of a tool
    Step, and inside the tools of an agent that itself runs as a tool: they must not reuse the key
    of the outer call.
    """
    return current_call.get()
