"""Tools: the kinds whose calls run as Steps, what their gates know, and those that cannot."""

from __future__ import annotations

from typing import Any, Final

from agents import Tool

from dex_agents_openai_agents._tools.apply_patch import ApplyPatchKind
from dex_agents_openai_agents._tools.base import ToolKind
from dex_agents_openai_agents._tools.custom import CustomKind
from dex_agents_openai_agents._tools.function import FunctionKind
from dex_agents_openai_agents._tools.recipe import recipe_of
from dex_agents_openai_agents._tools.shell import ShellKind
from dex_agents_openai_agents._tools.stepwise import StepwiseKind

__all__ = ["KINDS", "STEPWISE", "ToolKind", "is_gate", "kind_of", "kind_of_call"]

KINDS: Final[tuple[ToolKind[Any], ...]] = (
    FunctionKind(),
    CustomKind(),
    ShellKind(),
    ApplyPatchKind(),
)

#: A function tool to the model, so no kind of call of its own.
STEPWISE: Final = StepwiseKind()


def kind_of(tool: Tool) -> ToolKind[Any] | None:
    """Return the kind of a tool, or `None` for one whose calls cannot run as Steps."""
    if recipe_of(tool) is not None:
        return STEPWISE
    for kind in KINDS:
        if isinstance(tool, kind.tool_type):
            # A shell without an executor is run by the provider.
            is_hosted = isinstance(kind, ShellKind) and getattr(tool, "executor", None) is None
            return None if is_hosted else kind
    return None


def kind_of_call(call_type: object) -> ToolKind[Any] | None:
    """Return the kind whose tools a model calls with items of this type."""
    return next((kind for kind in KINDS if kind.call_type == call_type), None)


def is_gate(tool: Tool) -> bool:
    """Whether a tool is a gate, whose call runs elsewhere."""
    kind = kind_of(tool)
    return kind is not None and kind.original(tool) is not None
