"""What a tool may ask about the durable call it runs in."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from dex_agents import DeferredToolExecution

_current: ContextVar[DeferredToolExecution | None] = ContextVar(
    "dex_agents_deferred_tool_execution", default=None
)


def get_current_deferred_tool_execution() -> DeferredToolExecution | None:
    """Return the tool call that is running, for its idempotency key and attempt.

    Works in sync and async tools and in everything they start. Returns `None` outside of a tool
    Step, and inside the tools of an agent that itself runs as a tool: they must not reuse the key
    of the outer call.
    """
    return _current.get()


@contextmanager
def current_execution(execution: DeferredToolExecution | None) -> Generator[None]:
    """Make a tool call the current one, or hide it from a nested run with `None`."""
    token = _current.set(execution)
    try:
        yield
    finally:
        _current.reset(token)
