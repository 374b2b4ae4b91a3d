"""The session Flow of an agent, made in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from agents import Agent, RunConfig, RunErrorHandlers, RunHooks
from agents.run_config import DEFAULT_MAX_TURNS

from dex_agents import AgentSessionFlow, AgentSessionOptions, ToolEffect, ToolPolicy
from dex_agents_openai_agents.runner import OpenAIAgentsRunner
from dex_agents_openai_agents.settings import ContextFactory, NextTurnAgent


def openai_agents_session_flow(
    agent: Agent[Any],
    *,
    flow_type: str,
    tool_policies: Mapping[str, ToolPolicy] | None = None,
    default_tool_effect: ToolEffect | None = None,
    interrupt_deadline: timedelta | None = None,
    options: AgentSessionOptions | None = None,
    run_config: RunConfig | None = None,
    context: object = None,
    context_factory: ContextFactory | None = None,
    hooks: RunHooks[Any] | None = None,
    max_turns: int | None = DEFAULT_MAX_TURNS,
    error_handlers: RunErrorHandlers[Any] | None = None,
    next_turn_agent: NextTurnAgent = "last",
    allow_at_least_once_tools: bool = False,
    trust_mcp_hints: bool = True,
) -> AgentSessionFlow:
    """Return the Flow that runs an agent as durable sessions.

    The arguments from `run_config` on are those of `OpenAIAgentsRunner`.

    Args:
        agent: The agent that begins a session, as it is.
        flow_type: Name of the kind of session, unique on the server.
        tool_policies: Policies by qualified tool name. Every one must name a tool of the agents.
        default_tool_effect: Effect of a tool that has no policy and claims nothing itself.
        interrupt_deadline: Time after which an unanswered approval counts as rejected.
        options: Everything else about the sessions. The three arguments above win over it.

    Raises:
        AgentDefinitionError: The agents, the policies or the options cannot work as given.
    """
    given: dict[str, Any] = {
        "tool_policies": tool_policies,
        "default_tool_effect": default_tool_effect,
        "interrupt_deadline": interrupt_deadline,
    }
    session_options = dataclasses.replace(
        options or AgentSessionOptions(),
        **{name: value for name, value in given.items() if value is not None},
    )
    runner = OpenAIAgentsRunner(
        agent,
        run_config=run_config,
        context=context,
        context_factory=context_factory,
        hooks=hooks,
        max_turns=max_turns,
        error_handlers=error_handlers,
        next_turn_agent=next_turn_agent,
        allow_at_least_once_tools=allow_at_least_once_tools,
        trust_mcp_hints=trust_mcp_hints,
        tool_attempts=session_options.tool_limits.max_attempts,
    )
    runner.validate_tool_policies(session_options.tool_policies)
    return AgentSessionFlow(runner, flow_type=flow_type, options=session_options)
