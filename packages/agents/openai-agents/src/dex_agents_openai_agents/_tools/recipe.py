"""How a stepwise agent tool was made, kept on the tool and on its gate.

The graph makes the tool again, over the gated copy of its agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

from agents import Agent, FunctionTool, RunHooks, Tool
from agents.tool import ToolErrorFunction

_RECIPE: Final = "dex_agents_stepwise_recipe"
_ORIGINAL: Final = "dex_agents_stepwise_original"


@dataclass(frozen=True)
class StepwiseRecipe:
    """How a stepwise agent tool was made, to make it again over another copy of its agent."""

    agent: Agent[Any]
    hooks: RunHooks[Any] | None
    failure_error_function: ToolErrorFunction | None
    options: dict[str, Any]

    def build(self, agent: Agent[Any], **overrides: Any) -> FunctionTool:
        """Return the tool over an agent.

        Args:
            agent: The agent, or a copy of it.
            overrides: Arguments of `Agent.as_tool` that replace the application's.
        """
        given: dict[str, Any] = {
            **self.options,
            "hooks": self.hooks,
            "failure_error_function": self.failure_error_function,
            **overrides,
        }
        return agent.as_tool(**given)


def with_recipe(tool: FunctionTool, recipe: StepwiseRecipe) -> FunctionTool:
    """Return the tool, which then tells how it was made."""
    tool.__dict__[_RECIPE] = recipe
    return tool


def recipe_of(tool: Tool | None) -> StepwiseRecipe | None:
    """Return how a stepwise agent tool was made, or `None` for any other tool."""
    return cast("StepwiseRecipe | None", getattr(tool, _RECIPE, None))


def mark_gate(gate: FunctionTool, original: FunctionTool) -> FunctionTool:
    """Return the gate of a stepwise agent tool, which knows the application's tool."""
    gate.__dict__[_RECIPE] = recipe_of(original)
    gate.__dict__[_ORIGINAL] = original
    return gate


def original_of(tool: FunctionTool) -> FunctionTool | None:
    """Return the application's tool behind the gate of a stepwise agent tool."""
    return cast("FunctionTool | None", tool.__dict__.get(_ORIGINAL))
