"""The gated copy of an agent: its tools ask for approval, then give a recorded result.

The framework stops a run at a tool that needs approval, right after the model's response. So in the
copy every function tool needs it, and runs nothing: the session runs the call as a Step of its own
and gives the result back when the turn resumes. What a gate returns travels in a context variable,
never in the gate, because one copy serves all sessions of a worker at the same time.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any, cast

from agents import (
    Agent,
    AgentsException,
    FunctionTool,
    Model,
    RunContextWrapper,
    Tool,
)
from agents.sandbox import SandboxAgent
from agents.tool import ToolErrorFunction

from dex_agents import ModelError
from dex_agents_openai_agents._graph.hooks import GatedAgentHooks, ModelStepHooks
from dex_agents_openai_agents._model.errors import classify_model_step_error
from dex_agents_openai_agents._model.model_tap import tap_model
from dex_agents_openai_agents._tools import is_gate, kind_of
from dex_agents_openai_agents._tools.gate_scope import StepTool, current_scope
from dex_agents_openai_agents._tools.recipe import mark_gate, recipe_of
from dex_agents_openai_agents._tools.ungateable import refuse_unless_hosted


def gate_tool(tool: Tool) -> Tool:
    """Return the gated copy of a tool, which looks the same to the model.

    A gate, and a tool whose calls cannot run as Steps, are returned as they are.
    """
    kind = kind_of(tool)
    if kind is None or kind.original(tool) is not None:
        return tool
    return kind.gate(tool)


def gate_agent_tool(tool: FunctionTool, nested: Agent[Any]) -> FunctionTool:
    """Return the gate of a stepwise agent tool.

    Args:
        tool: The application's tool.
        nested: Gated copy of its agent.
    """
    recipe = recipe_of(tool)
    assert recipe is not None, "only for stepwise agent tools"
    gate = recipe.build(
        nested,
        is_enabled=True,
        needs_approval=True,
        hooks=ModelStepHooks(recipe.hooks),
        failure_error_function=_final_failures(recipe.failure_error_function),
    )
    return mark_gate(gate, tool)


def _final_failures(formatter: ToolErrorFunction | None) -> ToolErrorFunction:
    """Word only failures that another attempt of the Step would meet again."""

    async def explain(context: RunContextWrapper[Any], error: Exception) -> str:
        if formatter is None or not isinstance(error, AgentsException):
            raise error
        classified = classify_model_step_error(error, current_scope().call)
        if isinstance(classified, ModelError):
            raise error
        text = formatter(context, error)
        return await text if inspect.isawaitable(text) else text

    return explain


@functools.cache
def _gated_class(base: type[Agent[Any]]) -> type[Agent[Any]]:
    """Return a subclass whose tool lists are gated, wherever they come from."""

    class Gated(base):
        async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
            listed = await super().get_all_tools(run_context)
            return await _gate_listing(self, listed, run_context)

    # The class shows in traces and in the application's own `type(agent)` checks.
    Gated.__name__, Gated.__qualname__ = base.__name__, base.__qualname__
    Gated.__module__ = base.__module__
    return Gated


async def _gate_listing(
    agent: Agent[Any], listed: list[Tool], run_context: RunContextWrapper[Any]
) -> list[Tool]:
    scope = current_scope()
    tools: list[Tool] = []
    for tool in listed:
        kind = kind_of(tool)
        if kind is None and not scope.allows_at_least_once:
            refuse_unless_hosted(tool, f"agent {agent.name!r} > tool {tool.name!r}")
        # What a sandbox brings works in this one process only, so it cannot run elsewhere.
        if kind is None or (isinstance(agent, SandboxAgent) and not is_gate(tool)):
            tools.append(tool)
            continue
        gate = gate_tool(tool)
        original = cast(StepTool, kind.original(gate))
        scope.listed[agent.name, kind.policy_name(original)] = original
        if scope.is_restoring or await _is_enabled(original, run_context, agent):
            tools.append(gate)
    return tools


async def _is_enabled(
    tool: StepTool, run_context: RunContextWrapper[Any], agent: Agent[Any]
) -> bool:
    if not isinstance(tool, FunctionTool):
        return True
    if isinstance(tool.is_enabled, bool):
        return tool.is_enabled
    answer = tool.is_enabled(run_context, agent)
    return bool(await answer if inspect.isawaitable(answer) else answer)


def gate_agent(agent: Agent[Any]) -> Agent[Any]:
    """Return the gated copy of one agent; its handoffs still lead to the originals."""
    gated = copy.copy(agent)
    # A copied `Agent` cannot be rebuilt through its constructor when a subclass has its own.
    gated.__class__ = _gated_class(type(agent))
    if isinstance(agent.model, Model):
        gated.model = tap_model(agent.model)
    # The graph puts the gates of stepwise agent tools in place once it has all copies.
    gated.tools = [t if recipe_of(t) is not None else gate_tool(t) for t in agent.tools]
    if agent.hooks is not None:
        gated.hooks = GatedAgentHooks(agent.hooks)
    return gated
