"""Custom tools: one raw text in, one text out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from agents import Agent, CustomTool, RunContextWrapper, ToolApprovalItem, ToolCallOutputItem
from agents.tool_context import ToolContext
from openai.types.responses import ResponseCustomToolCall

from dex_agents import AgentToolCall, ToolExecutionResult
from dex_agents_openai_agents._stored.tool_results import CallOrigin
from dex_agents_openai_agents._tools.base import ToolKind, ask_rule, call_body, raw_field
from dex_agents_openai_agents._tools.gate_scope import recorded_result


class _RecordedCustomTool:
    """Stands in for the body of a custom tool."""

    def __init__(self, original: CustomTool) -> None:
        self.original = original

    def __call__(self, context: ToolContext[Any], _input: str) -> object:
        return recorded_result(self.original.name, context.tool_call_id)


class CustomKind(ToolKind[CustomTool]):
    """See the module."""

    tool_type = CustomTool
    call_type = "custom_tool_call"

    def gate(self, tool: CustomTool) -> CustomTool:
        gate = copy.copy(tool)
        gate.on_invoke_tool = _RecordedCustomTool(tool)
        _set_approval(gate, True)
        gate.custom_data_extractor = None
        return gate

    def original(self, tool: CustomTool) -> CustomTool | None:
        invoke = tool.on_invoke_tool
        return invoke.original if isinstance(invoke, _RecordedCustomTool) else None

    def body(self, tool: CustomTool, raised: list[Exception]) -> CustomTool:
        async def invoke(context: ToolContext[Any], text: str) -> Any:
            return await call_body(raised, tool.on_invoke_tool, context, text)

        body = copy.copy(tool)
        body.on_invoke_tool = invoke
        _set_approval(body, False)
        body.allowed_callers = None
        return body

    async def needs_approval(
        self, tool: CustomTool, context: RunContextWrapper[Any], item: ToolApprovalItem
    ) -> bool:
        rule = tool.runtime_needs_approval()
        return await ask_rule(rule, context, self.arguments(item), item.call_id)

    def on_approval(self, tool: CustomTool) -> Callable[..., Any] | None:
        return tool.runtime_on_approval()

    def arguments(self, item: ToolApprovalItem) -> str:
        return str(raw_field(item, "input") or "")

    def replay(self, call_id: str, origin: CallOrigin, arguments: str) -> Any:
        return ResponseCustomToolCall(
            type="custom_tool_call", call_id=call_id, name=origin.name, input=arguments
        )

    def result(
        self,
        origin: CallOrigin,
        owner: Agent[Any],
        tool: CustomTool,
        item: ToolCallOutputItem,
        is_replaced: bool,
    ) -> ToolExecutionResult:
        return ToolExecutionResult(str(item.output))

    def recorded(self, record: AgentToolCall, owner: Agent[Any], tool: CustomTool | None) -> object:
        return record.output or ""


def _set_approval(tool: CustomTool, is_needed: bool) -> None:
    # Set on the object, because a subclass may have a rule that looks at nothing else.
    tool.__dict__["runtime_needs_approval"] = lambda: is_needed
    tool.__dict__["runtime_on_approval"] = lambda: None
