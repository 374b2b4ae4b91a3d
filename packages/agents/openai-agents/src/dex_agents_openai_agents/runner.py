"""The runner: what a session calls to run an agent of the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import Agent, RunConfig, RunErrorHandlers, RunHooks
from agents.run_config import DEFAULT_MAX_TURNS

from dex_agents import (
    AgentTurnContext,
    AgentTurnOutcome,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    ToolExecutionResult,
    ToolPolicy,
)
from dex_agents_openai_agents._graph.graph import build_graph
from dex_agents_openai_agents._graph.policies import validate_policies
from dex_agents_openai_agents._steps.model_step import ModelStep
from dex_agents_openai_agents._steps.run_context import ContextSource
from dex_agents_openai_agents._steps.runner_settings import RunnerSettings
from dex_agents_openai_agents._steps.tool_step import ToolStep
from dex_agents_openai_agents._stored.history import build_user_item, encode_item
from dex_agents_openai_agents.settings import ContextFactory, NextTurnAgent


class OpenAIAgentsRunner:
    """Runs an agent one model call and one tool call at a time.

    The agent and every agent it can hand off to are copied here; later changes to them do not
    reach the runner. Callbacks of a model Step receive the copy, so compare agents by name. One
    runner serves any number of sessions at the same time.

    Args:
        agent: The agent that begins a session.
        run_config: Configuration of every run, as for `Runner.run`.
        context: Run context. Every Step gets a deep copy, so a change stays within its Step.
        context_factory: Makes the run context of a Step from the session id and the turn id,
            instead of `context`. May be async.
        hooks: Run hooks, as for `Runner.run`. `on_agent_start` fires once per model Step.
        max_turns: Most model calls of one session turn; `None` for no limit.
        error_handlers: As for `Runner.run`.
        next_turn_agent: Which agent takes the next user message: the one that ended the last turn
            (`"last"`) or always the first (`"starting"`).
        allow_at_least_once_tools: Whether tools that cannot run as Steps may run inside model
            Steps, where a retry runs them again. Without it such an agent is refused.
        trust_mcp_hints: Whether an MCP server's claims about its tools decide their effects where
            no policy does.
        tool_attempts: Attempts that the session makes of a repeatable tool call. After the last
            one, a tool's own `failure_error_function` writes what the model reads.

    Raises:
        AgentDefinitionError: The graph has something that cannot run durably; the text gives the
            path to it.
    """

    def __init__(
        self,
        agent: Agent[Any],
        *,
        run_config: RunConfig | None = None,
        context: object = None,
        context_factory: ContextFactory | None = None,
        hooks: RunHooks[Any] | None = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        error_handlers: RunErrorHandlers[Any] | None = None,
        next_turn_agent: NextTurnAgent = "last",
        allow_at_least_once_tools: bool = False,
        trust_mcp_hints: bool = True,
        tool_attempts: int = 3,
    ) -> None:
        self._settings = RunnerSettings(
            run_config=run_config if run_config is not None else RunConfig(),
            context=ContextSource(context, context_factory),
            hooks=hooks,
            max_turns=max_turns,
            error_handlers=error_handlers,
            next_turn_agent=next_turn_agent,
            trust_mcp_hints=trust_mcp_hints,
            tool_attempts=tool_attempts,
        )
        self._graph = build_graph(agent, allow_at_least_once_tools=allow_at_least_once_tools)

    def validate_tool_policies(self, tool_policies: Mapping[str, ToolPolicy]) -> None:
        """Check that every policy names a function tool of the agent graph.

        Args:
            tool_policies: Policies by qualified tool name: the tool's name, or
                `<namespace>.<name>`.

        Raises:
            AgentDefinitionError: A policy names no tool.
        """
        validate_policies(self._graph, tool_policies)

    def build_user_message(self, text: str) -> FrameworkMessage:
        """Return the stored form of a user message."""
        return FrameworkMessage(
            role=MessageRole.USER, framework_item=encode_item(build_user_item(text)), text=text
        )

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        """Make one model call and stop before any tool runs.

        Raises:
            TurnFailedError: The turn cannot succeed.
            ModelError: Another attempt may help.
        """
        return await ModelStep(self._settings, self._graph, turn).run()

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Run one tool call.

        Raises:
            ToolExecutionError: The call failed and the model reads why.
        """
        return await ToolStep(self._settings, self._graph, call).run()
