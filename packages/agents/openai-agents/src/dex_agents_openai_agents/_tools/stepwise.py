"""Agents as tools, opened up into Steps: the gate runs the nested agent, itself gated."""

from __future__ import annotations

from agents import FunctionTool

from dex_agents import AgentDefinitionError
from dex_agents_openai_agents._tools.function import FunctionKind
from dex_agents_openai_agents._tools.recipe import original_of


class StepwiseKind(FunctionKind):
    """See the module. The gate is made with the graph, which has the copy of the nested agent."""

    def gate(self, tool: FunctionTool) -> FunctionTool:
        raise AgentDefinitionError(
            f"the stepwise agent tool {tool.name!r} came with a list made at run time, so its "
            "agent is not known. Put it into Agent.tools, or use Agent.as_tool()"
        )

    def original(self, tool: FunctionTool) -> FunctionTool | None:
        return original_of(tool)
