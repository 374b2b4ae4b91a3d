"""The apply-patch tool: an editor that creates, updates and deletes files."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Literal, cast

from agents import Agent, ApplyPatchTool, RunContextWrapper, ToolApprovalItem, ToolCallOutputItem
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from openai.types.responses import ResponseCustomToolCall

from dex_agents import AgentToolCall, ToolCallStatus, ToolExecutionResult
from dex_agents_openai_agents._stored.tool_results import CallOrigin, payload_of
from dex_agents_openai_agents._tools.base import (
    ToolKind,
    ask_rule,
    call_body,
    raw_field,
    value_field,
)
from dex_agents_openai_agents._tools.gate_scope import current_scope, recorded_result

_FIELDS = ("type", "path", "diff", "move_to")


class RecordedPatch:
    """The recorded result of one call.

    An editor is told operations, not calls. A call's first operation returns the whole result and
    the others nothing, which makes the same output as the real editor did.

    Attributes:
        operations: Operations of the call that the framework has not asked for yet.
        result: What the editor returned for the whole call.
        is_given: Whether the result was handed out.
    """

    def __init__(self, operations: list[tuple[Any, ...]], result: ApplyPatchResult) -> None:
        self.operations = operations
        self.result = result
        self.is_given = False

    def take(self, operation: tuple[Any, ...]) -> bool:
        """Whether an operation is the next one of this call; if so it is used up."""
        if not self.operations or self.operations[0] != operation:
            return False
        self.operations.pop(0)
        return True

    def give(self) -> ApplyPatchResult | None:
        """Return the result once."""
        if self.is_given:
            return None
        self.is_given = True
        return self.result


class _RecordedEditor:
    """Stands in for the editor. Calls are resolved one after the other, in model order."""

    def __init__(self, original: ApplyPatchTool) -> None:
        self.original = original

    def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult | None:
        return self._recorded(operation)

    def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult | None:
        return self._recorded(operation)

    def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult | None:
        return self._recorded(operation)

    def _recorded(self, operation: ApplyPatchOperation) -> ApplyPatchResult | None:
        asked = _key(operation)
        for result in current_scope().results.values():
            if isinstance(result, RecordedPatch) and result.take(asked):
                return result.give()
        recorded_result(self.original.name, "")
        return None


class _Editor:
    """The application's editor; what it raises is noted."""

    def __init__(self, editor: Any, raised: list[Exception]) -> None:
        self._editor = editor
        self._raised = raised

    async def create_file(self, operation: ApplyPatchOperation) -> Any:
        return await call_body(self._raised, self._editor.create_file, operation)

    async def update_file(self, operation: ApplyPatchOperation) -> Any:
        return await call_body(self._raised, self._editor.update_file, operation)

    async def delete_file(self, operation: ApplyPatchOperation) -> Any:
        return await call_body(self._raised, self._editor.delete_file, operation)


class ApplyPatchKind(ToolKind[ApplyPatchTool]):
    """See the module."""

    tool_type = ApplyPatchTool
    call_type = "apply_patch_call"

    def gate(self, tool: ApplyPatchTool) -> ApplyPatchTool:
        gate = copy.copy(tool)
        gate.editor = _RecordedEditor(tool)
        gate.needs_approval = True
        gate.on_approval = None
        gate.custom_data_extractor = None
        return gate

    def original(self, tool: ApplyPatchTool) -> ApplyPatchTool | None:
        editor: object = tool.editor
        return editor.original if isinstance(editor, _RecordedEditor) else None

    def body(self, tool: ApplyPatchTool, raised: list[Exception]) -> ApplyPatchTool:
        body = copy.copy(tool)
        body.editor = _Editor(tool.editor, raised)
        body.needs_approval = False
        body.on_approval = None
        body.allowed_callers = None
        return body

    async def needs_approval(
        self, tool: ApplyPatchTool, context: RunContextWrapper[Any], item: ToolApprovalItem
    ) -> bool:
        for fields in _operations(self.arguments(item)):
            operation = ApplyPatchOperation(
                type=fields["type"],
                path=fields["path"],
                diff=fields.get("diff"),
                ctx_wrapper=context,
                move_to=fields.get("move_to"),
            )
            if await ask_rule(tool.needs_approval, context, operation, item.call_id):
                return True
        return False

    def arguments(self, item: ToolApprovalItem) -> str:
        several = raw_field(item, "operations")
        if isinstance(several, list):
            operations = [_plain(operation) for operation in cast("list[object]", several)]
            return json.dumps({"operations": operations}, ensure_ascii=False)
        return json.dumps(_plain(raw_field(item, "operation")), ensure_ascii=False)

    def replay(self, call_id: str, origin: CallOrigin, arguments: str) -> Any:
        # The framework reads this older form into exactly the same operations.
        return ResponseCustomToolCall(
            type="custom_tool_call", call_id=call_id, name="apply_patch", input=arguments
        )

    def result(
        self,
        origin: CallOrigin,
        owner: Agent[Any],
        tool: ApplyPatchTool,
        item: ToolCallOutputItem,
        is_replaced: bool,
    ) -> ToolExecutionResult:
        status = cast("dict[str, Any]", item.raw_item)["status"]
        return ToolExecutionResult(str(item.output), origin.encode(patch_status=status))

    def recorded(
        self, record: AgentToolCall, owner: Agent[Any], tool: ApplyPatchTool | None
    ) -> object:
        return RecordedPatch(
            [_key(operation) for operation in _operations(record.arguments)],
            ApplyPatchResult(status=_status(record), output=record.output or None),
        )

    def output_item(self, call_id: str, record: AgentToolCall, text: str) -> dict[str, Any]:
        item = {"type": "apply_patch_call_output", "call_id": call_id, "status": _status(record)}
        return {**item, "output": text} if text else item


def _status(record: AgentToolCall) -> Literal["completed", "failed"]:
    if record.status is not ToolCallStatus.SUCCEEDED:
        return "failed"
    return "failed" if payload_of(record).get("patch_status") == "failed" else "completed"


def _operations(arguments: str) -> list[dict[str, Any]]:
    fields = cast("dict[str, Any]", json.loads(arguments))
    return fields.get("operations") or [fields]


def _plain(operation: object) -> dict[str, Any]:
    values = {name: value_field(operation, name) for name in _FIELDS}
    return {name: value for name, value in values.items() if value is not None}


def _key(operation: ApplyPatchOperation | Mapping[str, Any]) -> tuple[Any, ...]:
    # The framework gives a file that is deleted no diff, whatever the model wrote.
    is_delete = value_field(operation, "type") == "delete_file"
    return tuple(
        None if is_delete and name == "diff" else value_field(operation, name) for name in _FIELDS
    )
