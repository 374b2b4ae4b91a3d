"""Shell tools that the application runs itself."""

from __future__ import annotations

import copy
import json
from typing import Any, Final, cast

from agents import (
    Agent,
    RunContextWrapper,
    ShellActionRequest,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellCommandRequest,
    ShellResult,
    ShellTool,
    ToolApprovalItem,
    ToolCallOutputItem,
)
from openai.types.responses import ResponseFunctionShellToolCall

from dex_agents import AgentToolCall, ToolExecutionResult
from dex_agents_openai_agents._stored.tool_results import CallOrigin, payload_of
from dex_agents_openai_agents._tools.base import (
    ToolKind,
    ask_rule,
    call_body,
    raw_field,
    value_field,
)
from dex_agents_openai_agents._tools.gate_scope import RecordedFailure, recorded_result

_ACTION_FIELDS: Final = ("commands", "timeout_ms", "max_output_length")


class _RecordedExecutor:
    """Stands in for the executor."""

    def __init__(self, original: ShellTool) -> None:
        self.original = original

    def __call__(self, request: ShellCommandRequest) -> Any:
        return recorded_result(self.original.name, request.data.call_id)


class ShellKind(ToolKind[ShellTool]):
    """See the module."""

    tool_type = ShellTool
    call_type = "shell_call"

    def gate(self, tool: ShellTool) -> ShellTool:
        gate = copy.copy(tool)
        gate.executor = _RecordedExecutor(tool)
        gate.needs_approval = True
        gate.on_approval = None
        return gate

    def original(self, tool: ShellTool) -> ShellTool | None:
        executor = tool.executor
        return executor.original if isinstance(executor, _RecordedExecutor) else None

    def body(self, tool: ShellTool, raised: list[Exception]) -> ShellTool:
        executor = tool.executor
        assert executor is not None, "a shell without an executor belongs to the provider"

        async def execute(request: ShellCommandRequest) -> Any:
            return await call_body(raised, executor, request)

        body = copy.copy(tool)
        body.executor = execute
        body.needs_approval = False
        body.on_approval = None
        body.allowed_callers = None
        return body

    async def needs_approval(
        self, tool: ShellTool, context: RunContextWrapper[Any], item: ToolApprovalItem
    ) -> bool:
        action = ShellActionRequest(**json.loads(self.arguments(item)))
        return await ask_rule(tool.needs_approval, context, action, item.call_id)

    def arguments(self, item: ToolApprovalItem) -> str:
        action = raw_field(item, "action")
        values = {name: value_field(action, name) for name in _ACTION_FIELDS}
        given = {name: value for name, value in values.items() if value is not None}
        return json.dumps(given, ensure_ascii=False)

    def details(self, item: ToolApprovalItem) -> dict[str, Any]:
        values = {name: raw_field(item, name) for name in ("id", "status")}
        return {name: value for name, value in values.items() if isinstance(value, str)}

    def replay(self, call_id: str, origin: CallOrigin, arguments: str) -> Any:
        return ResponseFunctionShellToolCall.model_validate(
            {
                "type": "shell_call",
                "call_id": call_id,
                "id": origin.details.get("id", call_id),
                "status": origin.details.get("status", "completed"),
                "action": json.loads(arguments),
            }
        )

    def result(
        self,
        origin: CallOrigin,
        owner: Agent[Any],
        tool: ShellTool,
        item: ToolCallOutputItem,
        is_replaced: bool,
    ) -> ToolExecutionResult:
        raw = cast("dict[str, Any]", item.raw_item)
        entries = cast("list[dict[str, Any]]", raw.get("shell_output") or [])
        if entries and all(isinstance(entry.get("outcome"), dict) for entry in entries):
            shell: dict[str, Any] = {"output": entries}
            for name in ("max_output_length", "provider_data"):
                if raw.get(name) is not None:
                    shell[name] = raw[name]
            return ToolExecutionResult(str(item.output), origin.encode(shell=shell))
        is_failed = raw.get("status") == "failed"
        return ToolExecutionResult(
            str(item.output), origin.encode(shell_failed=True) if is_failed else None
        )

    def recorded(self, record: AgentToolCall, owner: Agent[Any], tool: ShellTool | None) -> object:
        payload = payload_of(record)
        if payload.get("shell_failed") is True:
            return RecordedFailure(record.output or "")
        shell = payload.get("shell")
        if not isinstance(shell, dict):
            return record.output or ""
        shell = cast("dict[str, Any]", shell)
        return ShellResult(
            output=[_command_output(entry) for entry in shell["output"]],
            max_output_length=shell.get("max_output_length"),
            provider_data=shell.get("provider_data"),
        )

    def failed(self, text: str) -> RecordedFailure | None:
        return RecordedFailure(text)

    def output_item(self, call_id: str, record: AgentToolCall, text: str) -> dict[str, Any]:
        result = self.recorded(record, cast(Any, None), None) if record.output else None
        entries = (
            [
                {"stdout": one.stdout, "stderr": one.stderr, "outcome": _outcome(one)}
                for one in result.output
            ]
            if isinstance(result, ShellResult)
            else [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        )
        return {"type": "shell_call_output", "call_id": call_id, "output": entries}


def _command_output(entry: dict[str, Any]) -> ShellCommandOutput:
    outcome = entry["outcome"]
    return ShellCommandOutput(
        stdout=entry.get("stdout", ""),
        stderr=entry.get("stderr", ""),
        outcome=ShellCallOutcome(type=outcome["type"], exit_code=outcome.get("exit_code")),
        command=entry.get("command"),
        provider_data=entry.get("provider_data"),
    )


def _outcome(output: ShellCommandOutput) -> dict[str, Any]:
    if output.outcome.type == "timeout":
        return {"type": "timeout"}
    return {"type": "exit", "exit_code": output.outcome.exit_code}
