"""Tool policies against the tools an agent graph really has."""

from __future__ import annotations

from collections.abc import Mapping

from agents import FunctionTool

from dex_agents import AgentDefinitionError, ToolEffect, ToolPolicy
from dex_agents_openai_agents._graph.graph import AgentGraph
from dex_agents_openai_agents._tools.gate_scope import StepTool
from dex_agents_openai_agents._tools.hosted_mcp import server_labels
from dex_agents_openai_agents._tools.recipe import recipe_of


def validate_policies(graph: AgentGraph, tool_policies: Mapping[str, ToolPolicy]) -> None:
    """Check that every policy names a tool.

    A policy for a misspelt tool would leave the real tool with the default, unnoticed. Where tools
    are listed at run time only, and for a hosted MCP server, unknown names are let through.

    Raises:
        AgentDefinitionError: A policy names no tool of the graph.
    """
    servers = {label for entry in graph.agents.values() for label in server_labels(entry.original)}
    unknown = sorted(
        name
        for name in set(tool_policies) - graph.tool_names
        if name.partition(".")[0] not in servers
    )
    if not unknown or graph.lists_tools_at_run_time:
        return
    known = ", ".join(sorted(graph.tool_names)) or "none"
    raise AgentDefinitionError(
        f"no tool of the agents {', '.join(sorted(graph.agents))} is named "
        f"{', '.join(repr(name) for name in unknown)}; the tools are: {known}"
    )


def framework_effect(tool: StepTool, *, trust_mcp_hints: bool) -> ToolEffect | None:
    """Return the effect of a tool as far as the framework tells it, or `None`.

    Args:
        tool: The application's tool.
        trust_mcp_hints: Whether what an MCP server claims about its tool counts.
    """
    if recipe_of(tool) is not None:
        # The call itself only begins a nested run.
        return ToolEffect.READ
    hints = tool.mcp_annotations if isinstance(tool, FunctionTool) and trust_mcp_hints else None
    if hints is None:
        return None
    if _hint(hints, "read_only_hint", "readOnlyHint"):
        return ToolEffect.READ
    if _hint(hints, "idempotent_hint", "idempotentHint"):
        return ToolEffect.IDEMPOTENT_WRITE
    return None


def _hint(hints: object, *names: str) -> bool:
    # The attribute is spelt after the major version of the MCP package.
    return any(getattr(hints, name, None) is True for name in names)
