"""The agent graph of a runner: every agent reachable by handoffs, its original and its gated copy.

Built once, at construction, so that whatever cannot run durably is refused there, with the path to
it, and not in the middle of a paid turn.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    HostedMCPTool,
    RunContextWrapper,
    Tool,
)
from agents.sandbox import SandboxAgent

from dex_agents import AgentDefinitionError, TurnFailedError
from dex_agents_openai_agents import _sdk_internals as sdk
from dex_agents_openai_agents._graph.gate import gate_agent, gate_agent_tool
from dex_agents_openai_agents._graph.handoff_filters import over_whole_response
from dex_agents_openai_agents._tools import kind_of
from dex_agents_openai_agents._tools.gate_scope import StepTool
from dex_agents_openai_agents._tools.recipe import StepwiseRecipe, recipe_of
from dex_agents_openai_agents._tools.ungateable import not_gateable, refuse_unless_hosted


@dataclass
class GraphAgent:
    """One agent of the graph.

    Attributes:
        original: The application's agent; tool Steps use it.
        gated: Its copy; model Steps use it.
        tools: Its tools whose calls run as Steps, by policy name, as they stood at construction.
        lists_tools_at_run_time: Whether it may have more tools, from MCP servers or its own
            `get_all_tools`.
        recipe: Of the stepwise agent tool it belongs to, if it is nested.
    """

    original: Agent[Any]
    gated: Agent[Any]
    tools: dict[str, StepTool]
    lists_tools_at_run_time: bool
    recipe: StepwiseRecipe | None = None


@dataclass
class AgentGraph:
    """All agents of a runner. It owns the copies: handoffs hold their targets weakly.

    Attributes:
        start: Name of the agent that begins a session.
        allows_at_least_once: Whether tools that cannot be gated may run inside model Steps.
        agents: The agents by name.
    """

    start: str
    allows_at_least_once: bool
    agents: dict[str, GraphAgent] = field(default_factory=dict[str, GraphAgent])

    def require(self, name: str) -> GraphAgent:
        """Return an agent that a stored turn names.

        Raises:
            TurnFailedError: A deploy has removed it.
        """
        entry = self.agents.get(name)
        if entry is None:
            raise TurnFailedError(
                f"agent {name!r} runs this turn but is no longer part of the agent graph, which "
                f"has: {', '.join(sorted(self.agents))}",
                "AgentMissing",
            )
        return entry

    @property
    def tool_names(self) -> set[str]:
        """Policy names of all tools that run as Steps and are known at construction."""
        return {name for agent in self.agents.values() for name in agent.tools}

    @property
    def lists_tools_at_run_time(self) -> bool:
        """Whether some agent may have tools that are not known yet."""
        return any(agent.lists_tools_at_run_time for agent in self.agents.values())


def build_graph(agent: Agent[Any], *, allow_at_least_once_tools: bool) -> AgentGraph:
    """Copy an agent and everything it can hand off to.

    Args:
        agent: The agent that begins a session.
        allow_at_least_once_tools: Whether tools that cannot be gated may run inside model Steps,
            where a retry repeats them.

    Raises:
        AgentDefinitionError: The graph has a tool, a handoff or a name that cannot be used; the
            text gives the path to it.
    """
    graph = AgentGraph(agent.name, allow_at_least_once_tools)
    copies: dict[int, GraphAgent] = {}
    paths: dict[str, str] = {}
    waiting: list[tuple[Agent[Any], str, StepwiseRecipe | None]] = [
        (agent, _agent_path(agent), None)
    ]
    while waiting:
        current, path, recipe = waiting.pop(0)
        if id(current) in copies:
            _require_one_place(copies[id(current)], recipe, path, paths[current.name])
            continue
        if current.name in graph.agents:
            raise AgentDefinitionError(
                f"two agents are named {current.name!r}: {paths[current.name]} and {path}. "
                "A session finds its agents by name; rename one"
            )
        entry = GraphAgent(
            original=current,
            gated=gate_agent(current),
            tools=_step_tools(current, path, allow_at_least_once_tools),
            lists_tools_at_run_time=_lists_tools_at_run_time(current),
            recipe=recipe,
        )
        copies[id(current)] = graph.agents[current.name] = entry
        paths[current.name] = path
        if recipe is not None:
            _refuse_in_nested_runs(current, path)
        waiting.extend(
            (target, f"{path} > handoff to {_agent_path(target)}", None)
            for target in _handoff_targets(current, path)
        )
        waiting.extend(_stepwise_agents(current, path))
    _require_one_meaning_per_tool_name(graph)
    for entry in graph.agents.values():
        entry.gated.tools = [_with_nested_copy(tool, copies) for tool in entry.gated.tools]
        entry.gated.handoffs = [
            _gated_handoff(handoff, copies, entry.original) for handoff in entry.original.handoffs
        ]
    return graph


def _stepwise_agents(
    agent: Agent[Any], path: str
) -> Iterator[tuple[Agent[Any], str, StepwiseRecipe]]:
    for tool in agent.tools:
        recipe = recipe_of(tool)
        if recipe is None or not isinstance(tool, FunctionTool):
            continue
        tool_path = f"{path} > tool {tool.name!r}"
        if tool.timeout_seconds or tool.tool_input_guardrails or tool.tool_output_guardrails:
            raise AgentDefinitionError(
                f"{tool_path} is a stepwise agent tool and has a timeout or guardrails of its own, "
                "which would stretch over many Steps. Give them to its agent or to its tools"
            )
        yield recipe.agent, f"{tool_path} > {_agent_path(recipe.agent)}", recipe


def _refuse_in_nested_runs(agent: Agent[Any], path: str) -> None:
    """Refuse what would make a Step of a nested run call a second model."""
    if agent.handoffs:
        raise AgentDefinitionError(
            f"{path} has handoffs, but an agent in a stepwise agent tool must give the answer "
            "itself. Use Agent.as_tool(), which runs it as one Step"
        )
    for tool in agent.tools:
        if recipe_of(tool) is not None:
            raise AgentDefinitionError(
                f"{path} > tool {tool.name!r} is a stepwise agent tool inside another one. Use "
                "Agent.as_tool() for the inner agent, which runs it as one Step"
            )


def _require_one_place(
    entry: GraphAgent, recipe: StepwiseRecipe | None, path: str, known_path: str
) -> None:
    if entry.recipe is not recipe:
        raise AgentDefinitionError(
            f"one agent stands in two places, of which one is a stepwise agent tool: {known_path} "
            f"and {path}. Use a clone with another name in one of them"
        )


def _with_nested_copy(tool: Tool, copies: dict[int, GraphAgent]) -> Tool:
    recipe = recipe_of(tool)
    if recipe is None or not isinstance(tool, FunctionTool):
        return tool
    return gate_agent_tool(tool, copies[id(recipe.agent)].gated)


def _agent_path(agent: Agent[Any]) -> str:
    return f"agent {agent.name!r}"


def _lists_tools_at_run_time(agent: Agent[Any]) -> bool:
    return bool(agent.mcp_servers) or type(agent).get_all_tools is not Agent.get_all_tools


def _step_tools(
    agent: Agent[Any], path: str, allow_at_least_once_tools: bool
) -> dict[str, StepTool]:
    if isinstance(agent, SandboxAgent) and not allow_at_least_once_tools:
        raise not_gateable(path, "a sandbox agent brings tools that run inside the model call")
    tools: dict[str, StepTool] = {}
    for tool in agent.tools:
        tool_path = f"{path} > tool {tool.name!r}"
        kind = kind_of(tool)
        if kind is None:
            if not allow_at_least_once_tools:
                refuse_unless_hosted(tool, tool_path)
            continue
        name = kind.policy_name(tool)
        if name in tools:
            raise AgentDefinitionError(
                f"{path} has two tools named {name!r}; the model could not tell them apart"
            )
        if isinstance(tool, FunctionTool) and recipe_of(tool) is None:
            _refuse_nested_approvals(tool, tool_path, set())
        tools[name] = cast(StepTool, tool)
    return tools


def _refuse_nested_approvals(tool: FunctionTool, path: str, seen: set[int]) -> None:
    """Refuse an agent tool whose nested run could stop and wait for a person."""
    nested = sdk.nested_agent(tool)
    if nested is None:
        return
    waiting: list[tuple[Agent[Any], str]] = [(nested, f"{path} > {_agent_path(nested)}")]
    while waiting:
        agent, agent_path = waiting.pop(0)
        if id(agent) in seen:
            continue
        seen.add(id(agent))
        for inner in agent.tools:
            inner_path = f"{agent_path} > tool {inner.name!r}"
            if getattr(inner, "needs_approval", False) is not False or _asks_at_the_provider(inner):
                raise AgentDefinitionError(
                    f"{inner_path} needs approval, but an agent used as a tool runs as one Step "
                    "and cannot wait for a person. Give that tool to an agent of the handoff "
                    "graph, or set needs_approval on the agent tool itself"
                )
            if isinstance(inner, FunctionTool):
                _refuse_nested_approvals(inner, inner_path, seen)
        for handoff in agent.handoffs:
            target = handoff if isinstance(handoff, Agent) else sdk.handoff_target(handoff)
            if target is not None:
                waiting.append((target, f"{agent_path} > handoff to {_agent_path(target)}"))


def _asks_at_the_provider(tool: Tool) -> bool:
    """Whether a hosted MCP server asks for every call, which providers do unless told not to."""
    return (
        isinstance(tool, HostedMCPTool)
        and tool.on_approval_request is None
        and tool.tool_config.get("require_approval", "always") == "always"
    )


def _require_one_meaning_per_tool_name(graph: AgentGraph) -> None:
    """Policies and records name a tool, so one name must mean one tool in the whole graph."""
    owners: dict[str, tuple[str, StepTool]] = {}
    for agent_name, entry in graph.agents.items():
        for name, tool in entry.tools.items():
            owner, known = owners.setdefault(name, (agent_name, tool))
            if known is not tool:
                raise AgentDefinitionError(
                    f"agents {owner!r} and {agent_name!r} have different function tools named "
                    f"{name!r}. A tool policy could not tell them apart: rename one, or give both "
                    "agents the same tool object"
                )


def _handoff_targets(agent: Agent[Any], path: str) -> Iterator[Agent[Any]]:
    for handoff in agent.handoffs:
        if isinstance(handoff, Agent):
            yield handoff
            continue
        target = sdk.handoff_target(handoff)
        if target is None:
            raise AgentDefinitionError(
                f"{path} has a handoff to {handoff.agent_name!r} whose target is not known; "
                "make it with handoff(agent), or list the agent itself"
            )
        yield target


def _gated_handoff(
    handoff: Agent[Any] | Handoff[Any, Any], copies: dict[int, GraphAgent], owner: Agent[Any]
) -> Agent[Any] | Handoff[Any, Any]:
    if isinstance(handoff, Agent):
        return copies[id(handoff)].gated
    target = sdk.handoff_target(handoff)
    assert target is not None, "targets were checked while the graph was walked"
    invoke = handoff.on_invoke_handoff

    async def invoke_gated(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
        chosen = await invoke(context, arguments)
        if id(chosen) not in copies:
            raise AgentDefinitionError(
                f"the handoff {handoff.tool_name!r} of agent {owner.name!r} led to an agent "
                f"{chosen.name!r} that no handoff names; its tools could not be gated"
            )
        return copies[id(chosen)].gated

    gated = copy.copy(handoff)
    gated.on_invoke_handoff = invoke_gated
    if handoff.input_filter is not None:
        gated.input_filter = over_whole_response(handoff.input_filter)
    sdk.set_handoff_target(gated, copies[id(target)].gated)
    return gated
