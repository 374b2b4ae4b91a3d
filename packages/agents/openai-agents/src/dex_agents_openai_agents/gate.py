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
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

from agents import Agent, AgentHooks, FunctionTool, Model, RunContextWrapper, Tool
from agents.tool_context import ToolContext

from dex_agents_openai_agents.model_tap import tap_model


@dataclass
class GateScope:
    """What the gates of one model Step know.

    Attributes:
        results: What each approved call returns, by call id.
        is_restoring: Whether calls are still being resolved. Until then a tool that was disabled
            meanwhile stays in the list, so that its result is not lost.
        listed: The application's tools by agent and qualified name, as last listed.
    """

    results: Mapping[str, object] = field(default_factory=dict[str, object])
    is_restoring: bool = False
    listed: dict[tuple[str, str], FunctionTool] = field(
        default_factory=dict[tuple[str, str], FunctionTool]
    )


_scope: ContextVar[GateScope] = ContextVar("dex_agents_gate_scope")


@contextmanager
def gate_scope(scope: GateScope) -> Generator[None]:
    """Make a scope the one that gates look into; runs started inside inherit it."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


class RecordedInvoker:
    """Stands in for the body of a tool. It cannot reach the real body.

    Attributes:
        original: The application's tool, for its metadata.
    """

    def __init__(self, original: FunctionTool) -> None:
        self.original = original

    async def __call__(self, context: ToolContext[Any], arguments: str) -> object:
        results = _scope.get().results
        if context.tool_call_id not in results:
            raise RuntimeError(
                f"tool {self.original.name!r} was to run inside a model call; nothing was run"
            )
        return results[context.tool_call_id]


def gate_tool(tool: FunctionTool) -> FunctionTool:
    """Return the gated copy of a tool; the model sees the same tool."""
    if isinstance(tool.on_invoke_tool, RecordedInvoker):
        return tool
    gate = copy.copy(tool)
    gate.on_invoke_tool = RecordedInvoker(tool)
    gate.needs_approval = True
    # Everything that belongs to the body happens in the Step that runs it.
    gate.is_enabled = True
    gate.tool_input_guardrails = None
    gate.tool_output_guardrails = None
    gate.timeout_seconds = None
    gate.custom_data_extractor = None
    return gate


def original_tool(tool: Tool) -> FunctionTool | None:
    """Return the application's tool behind a gate, or `None` for a tool that is no gate."""
    if isinstance(tool, FunctionTool) and isinstance(tool.on_invoke_tool, RecordedInvoker):
        return tool.on_invoke_tool.original
    return None


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
    scope = _scope.get()
    tools: list[Tool] = []
    for tool in listed:
        if not isinstance(tool, FunctionTool):
            tools.append(tool)
            continue
        gate = gate_tool(tool)
        original = cast(RecordedInvoker, gate.on_invoke_tool).original
        scope.listed[agent.name, original.qualified_name] = original
        if scope.is_restoring or await _is_enabled(original, run_context, agent):
            tools.append(gate)
    return tools


async def _is_enabled(
    tool: FunctionTool, run_context: RunContextWrapper[Any], agent: Agent[Any]
) -> bool:
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
    gated.tools = [gate_tool(t) if isinstance(t, FunctionTool) else t for t in agent.tools]
    if agent.hooks is not None:
        gated.hooks = GatedAgentHooks(agent.hooks)
    return gated


class GatedAgentHooks(AgentHooks[Any]):
    """The hooks of an agent, silent about gates: the Step that runs a tool calls them for it."""

    def __init__(self, hooks: AgentHooks[Any]) -> None:
        self._hooks = hooks

    async def on_start(self, context: Any, agent: Any) -> None:
        await self._hooks.on_start(context, agent)

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        await self._hooks.on_end(context, agent, output)

    async def on_handoff(self, context: Any, agent: Any, source: Any) -> None:
        await self._hooks.on_handoff(context, agent, source)

    async def on_tool_start(self, context: Any, agent: Any, tool: Tool) -> None:
        if original_tool(tool) is None:
            await self._hooks.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Tool, result: object) -> None:
        if original_tool(tool) is None:
            await self._hooks.on_tool_end(context, agent, tool, result)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]
    ) -> None:
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        await self._hooks.on_llm_end(context, agent, response)
