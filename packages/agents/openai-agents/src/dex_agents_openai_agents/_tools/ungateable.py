"""Tools whose calls cannot be Steps: those of the provider, and those without any approval."""

from __future__ import annotations

from typing import Final

from agents import (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ShellTool,
    Tool,
    ToolSearchTool,
    WebSearchTool,
)
from agents.tool import ProgrammaticToolCallingTool

from dex_agents import AgentDefinitionError

#: Tools the provider runs inside the model call.
_HOSTED_TOOLS: Final = (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ProgrammaticToolCallingTool,
    ToolSearchTool,
    WebSearchTool,
)


def runs_at_the_provider(tool: Tool) -> bool:
    """Whether a tool is part of the model call wherever it is used."""
    if isinstance(tool, ShellTool):
        return tool.executor is None
    return isinstance(tool, _HOSTED_TOOLS)


def not_gateable(path: str, reason: str) -> AgentDefinitionError:
    """Return the refusal of something that would run inside model Steps.

    Args:
        path: The way to it, from the first agent.
        reason: Why it cannot run elsewhere.
    """
    return AgentDefinitionError(
        f"{path} cannot run as a durable Step: {reason}. Wrap it in a function_tool, or pass "
        "allow_at_least_once_tools=True and accept that a retried model call runs it again"
    )


def refuse_unless_hosted(tool: Tool, path: str) -> None:
    """Refuse a tool that is of no kind whose calls are Steps.

    Raises:
        AgentDefinitionError: This process would run it inside the model call.
    """
    if not runs_at_the_provider(tool):
        raise not_gateable(path, f"a {type(tool).__name__} runs inside the model call")
