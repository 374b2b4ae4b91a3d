"""Agents used as tools whose model calls and tool calls are Steps of the session.

`Agent.as_tool()` makes one tool call: the nested run, with all it does, is one Step. A tool made
here opens that run up. Its state is kept within the state of the outer run, and each Step goes on
until the nested agent has made one model call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    RunContextWrapper,
    RunHooks,
    RunResult,
    RunResultStreaming,
)
from agents.agent import AgentBase
from agents.agent_tool_input import StructuredToolInputBuilder
from agents.tool import ToolErrorFunction, default_tool_error_function

from dex_agents_openai_agents._tools.recipe import StepwiseRecipe, with_recipe

EnabledRule = Callable[[RunContextWrapper[Any], AgentBase[Any]], bool | Awaitable[bool]]
ApprovalRule = Callable[[RunContextWrapper[Any], dict[str, Any], str], Awaitable[bool]]
OutputExtractor = Callable[[RunResult | RunResultStreaming], Awaitable[str]]


def stepwise_agent_tool(
    agent: Agent[Any],
    tool_name: str | None,
    tool_description: str | None,
    *,
    custom_output_extractor: OutputExtractor | None = None,
    is_enabled: bool | EnabledRule = True,
    max_turns: int | None = None,
    hooks: RunHooks[Any] | None = None,
    failure_error_function: ToolErrorFunction | None = default_tool_error_function,
    needs_approval: bool | ApprovalRule = False,
    parameters: type[Any] | None = None,
    input_builder: StructuredToolInputBuilder | None = None,
    include_input_schema: bool = False,
) -> FunctionTool:
    """Return an agent as a tool whose every model call and tool call is a Step of its own.

    In a plain run the tool is what `agent.as_tool(...)` makes of the same arguments. In a session
    the tools of the nested agent have policies, approvals and idempotency keys like those of the
    outer agent; what they use counts; and a crash repeats one call of the nested run, not all of
    it. The nested runs of one response follow one another.

    The rule: the call of the tool itself does nothing but begin the nested run. So it is a `read`
    unless a policy says otherwise.

    The limits: the nested agent hands off to nobody, has no stepwise agent tools itself, has a name
    of its own and is the agent of one such tool only; all that is refused at construction. Its
    answers are not streamed. An answer that the framework has corrected at once (an unknown tool
    name, an empty structured answer) costs two model calls in one Step. Its call ids must differ
    from those of the outer run in the same turn. An open nested run ends the turn when another
    release of the framework refuses its state.

    Args:
        agent: The nested agent.
        tool_name: See `Agent.as_tool`, also for what follows.
        tool_description: See there.
        custom_output_extractor: See there.
        is_enabled: See there.
        max_turns: See there.
        hooks: See there.
        failure_error_function: Writes what the outer model reads about a nested run that cannot
            succeed. A failure that another attempt may heal is tried again first.
        needs_approval: See there.
        parameters: See there.
        input_builder: See there.
        include_input_schema: See there.
    """
    recipe = StepwiseRecipe(
        agent,
        hooks,
        failure_error_function,
        {
            "tool_name": tool_name,
            "tool_description": tool_description,
            "custom_output_extractor": custom_output_extractor,
            "is_enabled": is_enabled,
            "max_turns": max_turns,
            "needs_approval": needs_approval,
            "parameters": parameters,
            "input_builder": input_builder,
            "include_input_schema": include_input_schema,
        },
    )
    return with_recipe(recipe.build(agent), recipe)
