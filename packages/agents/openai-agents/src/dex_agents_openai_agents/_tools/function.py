"""Function tools, also those of MCP servers and agents used as tools."""

from __future__ import annotations

import copy
from typing import Any, cast

from agents import (
    Agent,
    FunctionTool,
    RunContextWrapper,
    ToolApprovalItem,
    ToolCallOutputItem,
)
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from dex_agents import AgentToolCall, ToolExecutionResult
from dex_agents_openai_agents import _sdk_internals as sdk
from dex_agents_openai_agents._stored.tool_results import (
    CallOrigin,
    decode_result,
    encode_result,
    recorded_parts,
)
from dex_agents_openai_agents._tools.base import ToolKind
from dex_agents_openai_agents._tools.gate_scope import recorded_result


class RecordedInvoker:
    """Stands in for the body of a tool. It cannot reach the real body.

    Attributes:
        original: The application's tool, for its metadata.
    """

    def __init__(self, original: FunctionTool) -> None:
        self.original = original

    async def __call__(self, context: ToolContext[Any], _arguments: str) -> object:
        return recorded_result(self.original.name, context.tool_call_id)


class FunctionKind(ToolKind[FunctionTool]):
    """See the module."""

    tool_type = FunctionTool
    max_turns = 1
    call_type = "function_call"

    def policy_name(self, tool: FunctionTool) -> str:
        return tool.qualified_name

    def gate(self, tool: FunctionTool) -> FunctionTool:
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

    def original(self, tool: FunctionTool) -> FunctionTool | None:
        invoker = tool.on_invoke_tool
        return invoker.original if isinstance(invoker, RecordedInvoker) else None

    def body(self, tool: FunctionTool, raised: list[Exception]) -> FunctionTool:
        body = sdk.without_failure_formatter(copy.copy(tool))
        body.needs_approval = False
        body.is_enabled = True
        # The recorded call comes from no search and no program, whatever the first one came from.
        body.defer_loading = False
        body.allowed_callers = None
        if body.timeout_seconds is not None:
            body.timeout_behavior = "raise_exception"
        return body

    async def needs_approval(
        self, tool: FunctionTool, context: RunContextWrapper[Any], item: ToolApprovalItem
    ) -> bool:
        return await sdk.needs_approval(tool, context, self.arguments(item), item.call_id or "")

    def arguments(self, item: ToolApprovalItem) -> str:
        return item.arguments or ""

    def replay(self, call_id: str, origin: CallOrigin, arguments: str) -> Any:
        return ResponseFunctionToolCall(
            type="function_call",
            call_id=call_id,
            name=origin.name,
            arguments=arguments,
            namespace=origin.namespace,
        )

    def result(
        self,
        origin: CallOrigin,
        owner: Agent[Any],
        tool: FunctionTool,
        item: ToolCallOutputItem,
        is_replaced: bool,
    ) -> ToolExecutionResult:
        return encode_result(
            origin,
            owner,
            tool,
            output=cast("dict[str, Any]", item.raw_item)["output"],
            value=item.output,
            is_replaced=is_replaced,
        )

    def recorded(
        self, record: AgentToolCall, owner: Agent[Any], tool: FunctionTool | None
    ) -> object:
        return decode_result(record, owner, tool)

    def output_item(self, call_id: str, record: AgentToolCall, text: str) -> dict[str, Any]:
        output = recorded_parts(record) or text
        return {"type": "function_call_output", "call_id": call_id, "output": output}
