"""What the gates of one model Step know, carried beside them in a context variable.

One gated copy of an agent serves all sessions of a worker at the same time, so nothing of a single
Step may be kept in it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from agents import ApplyPatchTool, CustomTool, FunctionTool, ShellTool

from dex_agents_openai_agents._model.errors import ModelCallLog
from dex_agents_openai_agents._tools.resumed_response import ResumedResponse

#: A tool whose calls can run as Steps.
StepTool = FunctionTool | CustomTool | ShellTool | ApplyPatchTool


@dataclass
class GateScope:
    """What the gates of one model Step know.

    Attributes:
        results: What each approved call returns, by call id, in the order of the calls.
        is_restoring: Whether calls are still being resolved. Until then a tool that was disabled
            meanwhile stays in the list, so that its result is not lost.
        listed: The application's tools by agent and policy name, as last listed.
        allows_at_least_once: Whether tools that are no gates may run inside the Step.
        call: What was seen of the Step's model call.
        resumed_response: The response whose calls are resolved, for handoff filters.
    """

    results: Mapping[str, object] = field(default_factory=dict[str, object])
    is_restoring: bool = False
    listed: dict[tuple[str, str], StepTool] = field(default_factory=dict[tuple[str, str], StepTool])
    allows_at_least_once: bool = False
    call: ModelCallLog = field(default_factory=ModelCallLog)
    resumed_response: ResumedResponse | None = None


class RecordedFailure(Exception):
    """Given back by a gate whose call failed, so that the framework words it as a failure."""


_scope: ContextVar[GateScope] = ContextVar("dex_agents_gate_scope")


@contextmanager
def gate_scope(scope: GateScope) -> Generator[None]:
    """Make a scope the one that gates look into; runs started inside inherit it."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def current_scope() -> GateScope:
    """Return the scope of the model Step that is running."""
    return _scope.get()


def recorded_result(tool_name: str, call_id: str) -> object:
    """Return what a gate is to return for a call.

    Raises:
        RecordedFailure: The call failed.
        RuntimeError: Nothing is recorded, so the framework was about to run a tool.
    """
    results = current_scope().results
    if call_id not in results:
        raise RuntimeError(f"tool {tool_name!r} was to run inside a model call; nothing was run")
    result = results[call_id]
    if isinstance(result, RecordedFailure):
        raise result
    return result
