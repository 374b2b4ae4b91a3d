"""The tool call that a tool Step is running, for the tool's body to find."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from dex_agents import DeferredToolExecution

current_call: ContextVar[DeferredToolExecution | None] = ContextVar(
    "dex_agents_deferred_tool_execution", default=None
)


@contextmanager
def running_call(execution: DeferredToolExecution | None) -> Generator[None]:
    """Make a tool call the current one, or hide it from a nested run with `None`."""
    token = current_call.set(execution)
    try:
        yield
    finally:
        current_call.reset(token)
