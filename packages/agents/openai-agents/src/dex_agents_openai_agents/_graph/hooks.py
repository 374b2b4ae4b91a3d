"""The hooks of a model Step: the application's own, silent about gates."""

from __future__ import annotations

from typing import Any

from agents import AgentHooks, RunHooks, Tool

from dex_agents_openai_agents._tools import is_gate
from dex_agents_openai_agents._tools.gate_scope import current_scope


class ModelStepHooks(RunHooks[Any]):
    """Forwards to the application's run hooks, except for gates, and sees when calls are resolved.

    Args:
        hooks: The application's run hooks, if any.
    """

    def __init__(self, hooks: RunHooks[Any] | None) -> None:
        self._hooks = hooks if hooks is not None else RunHooks[Any]()

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        # Pending calls are resolved, and the next request is about to be built.
        current_scope().is_restoring = False
        await self._hooks.on_agent_start(context, agent)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        await self._hooks.on_agent_end(context, agent, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        await self._hooks.on_handoff(context, from_agent, to_agent)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]
    ) -> None:
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        await self._hooks.on_llm_end(context, agent, response)

    async def on_tool_start(self, context: Any, agent: Any, tool: Tool) -> None:
        if not is_gate(tool):
            await self._hooks.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Tool, result: object) -> None:
        if not is_gate(tool):
            await self._hooks.on_tool_end(context, agent, tool, result)


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
        if not is_gate(tool):
            await self._hooks.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Tool, result: object) -> None:
        if not is_gate(tool):
            await self._hooks.on_tool_end(context, agent, tool, result)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]
    ) -> None:
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        await self._hooks.on_llm_end(context, agent, response)
