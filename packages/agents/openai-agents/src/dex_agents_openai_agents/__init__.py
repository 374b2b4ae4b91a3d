"""Run agents of the OpenAI Agents SDK as durable sessions."""

from dex_agents_openai_agents.agent_tools import stepwise_agent_tool
from dex_agents_openai_agents.execution import get_current_deferred_tool_execution
from dex_agents_openai_agents.flow import openai_agents_session_flow
from dex_agents_openai_agents.runner import OpenAIAgentsRunner

__all__ = [
    "OpenAIAgentsRunner",
    "get_current_deferred_tool_execution",
    "openai_agents_session_flow",
    "stepwise_agent_tool",
]
