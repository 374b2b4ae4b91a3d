"""A tool's result between the Step that produced it and the model Step that gives it back.

The record keeps readable text. What text cannot carry goes into the record's payload: image and
file parts, the Python value for an agent whose `tool_use_behavior` looks at it, and whether a
guardrail replaced or withheld the output.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from agents import Agent, FunctionTool
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from dex_agents import (
    AgentToolCall,
    ToolCallStatus,
    ToolExecutionResult,
    describe_tool_call_outcome,
)
from dex_agents_openai_agents import _sdk_internals as sdk

#: Form of `AgentToolCall.framework_payload`. A reader for every released form stays here.
PAYLOAD_FORMAT: Final = 1

_PART_KINDS: Final = {"input_text": "text", "input_image": "image", "input_file": "file"}


@dataclass(frozen=True)
class CallOrigin:
    """Where a deferred call comes from, and what the framework needs to make it again.

    Attributes:
        agent_name: Agent that asked for it.
        name: Name of the tool without its namespace.
        namespace: Namespace the provider gave with the call, if any.
        details: What a tool of this kind needs beside its arguments.
    """

    agent_name: str
    name: str
    namespace: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def encode(self, **more: object) -> str:
        """Return the payload text, with further fields of the result."""
        fields: dict[str, object] = {
            "v": PAYLOAD_FORMAT,
            "agent": self.agent_name,
            "name": self.name,
        }
        if self.namespace is not None:
            fields["namespace"] = self.namespace
        if self.details:
            fields["details"] = self.details
        return json.dumps({**fields, **more}, separators=(",", ":"))

    @classmethod
    def of(cls, record: AgentToolCall) -> CallOrigin | None:
        """Read it from a record, or return `None` when the record has none that is readable."""
        payload = payload_of(record)
        agent_name, name = payload.get("agent"), payload.get("name")
        if not isinstance(agent_name, str) or not isinstance(name, str):
            return None
        return cls(agent_name, name, payload.get("namespace"), payload.get("details") or {})


def payload_of(record: AgentToolCall) -> Mapping[str, Any]:
    """Return the payload of a record; empty when it has none that is readable."""
    try:
        payload = cast(object, json.loads(record.framework_payload or "null"))
    except ValueError:
        return {}
    if not isinstance(payload, Mapping):
        return {}
    payload = cast(Mapping[str, Any], payload)
    return payload if payload.get("v") == PAYLOAD_FORMAT else {}


def encode_result(
    origin: CallOrigin,
    owner: Agent[Any],
    tool: FunctionTool,
    *,
    output: str | list[dict[str, Any]],
    value: object,
    is_replaced: bool,
) -> ToolExecutionResult:
    """Return what the session stores for a tool that returned.

    Args:
        origin: Of the call.
        owner: Agent of the call.
        tool: The application's tool.
        output: What the model gets: text, or parts.
        value: What the tool returned, in Python.
        is_replaced: Whether a guardrail put `output` in the place of the tool's own.
    """
    if isinstance(output, list):
        looked_at = owner.tool_use_behavior != "run_llm_again" and not is_replaced
        is_one = looked_at and _parts_value(tool, output, is_one=True) == value
        more = {"is_one": True} if is_one else {}
        return ToolExecutionResult(_readable(output), origin.encode(parts=output, **more))
    if is_replaced:
        return ToolExecutionResult(output, origin.encode(replaced=True))
    if owner.tool_use_behavior != "run_llm_again":
        dumped = _dump_value(tool, value, output)
        if dumped is not None:
            return ToolExecutionResult(output, origin.encode(value=dumped))
    return ToolExecutionResult(output)


def withheld_result(origin: CallOrigin, guardrail: str) -> ToolExecutionResult:
    """Return the record of a tool that ran but whose output a guardrail refused."""
    return ToolExecutionResult(
        f"The output was withheld by the guardrail {guardrail!r}.",
        origin.encode(withheld=guardrail),
    )


def withheld_by(record: AgentToolCall) -> str | None:
    """Return the guardrail that refused a recorded output, or `None`."""
    guardrail = payload_of(record).get("withheld")
    return guardrail if isinstance(guardrail, str) else None


def is_replaced(record: AgentToolCall) -> bool:
    """Whether a guardrail's text stands in the place of the output, free of the output's schema."""
    return payload_of(record).get("replaced") is True


def model_text(record: AgentToolCall) -> str:
    """Return what the model reads for a final record."""
    if record.status is ToolCallStatus.REJECTED and record.rejection_message:
        return record.rejection_message
    if record.status is ToolCallStatus.FAILED:
        told = payload_of(record).get("told")
        if isinstance(told, str):
            return told
    return describe_tool_call_outcome(record)


def recorded_parts(record: AgentToolCall) -> list[dict[str, Any]] | None:
    """Return the text, image and file parts of a structured output, or `None` for text."""
    parts = payload_of(record).get("parts")
    if record.status is not ToolCallStatus.SUCCEEDED or not isinstance(parts, list):
        return None
    return cast(list[dict[str, Any]], parts)


def decode_result(record: AgentToolCall, owner: Agent[Any], tool: FunctionTool | None) -> object:
    """Return what a gate gives back, so that the framework makes the same output item again.

    Args:
        record: A record that succeeded.
        owner: Agent of the call.
        tool: The application's tool, if it is known.
    """
    payload = payload_of(record)
    output = record.output or ""
    parts = payload.get("parts")
    if isinstance(parts, list):
        parts = cast(list[dict[str, Any]], parts)
        return _parts_value(tool, parts, is_one=payload.get("is_one") is True)
    if owner.tool_use_behavior == "run_llm_again" or tool is None:
        return output
    adapter = sdk.output_adapter(tool)
    if adapter is not None:
        return adapter.validate_json(output)
    if "value" in payload:
        value = _load_value(tool, payload["value"])
        # What the model sees is what was recorded, whatever became of the type since then.
        if str(value) == output:
            return value
    return output


def _parts_value(tool: FunctionTool | None, parts: list[dict[str, Any]], *, is_one: bool) -> object:
    """Return parts as what a tool returned: a list, or the one part in its declared type."""
    written = [{**part, "type": _PART_KINDS.get(part["type"], part["type"])} for part in parts]
    if not is_one or len(written) != 1:
        return written
    try:
        return _adapter(tool).validate_python(written[0])
    except ValueError:
        return written[0]


def _readable(parts: list[dict[str, Any]]) -> str:
    texts: list[str] = []
    for part in parts:
        text = part.get("text")
        kind = _PART_KINDS.get(str(part.get("type")), "part")
        texts.append(text if isinstance(text, str) else f"[{part.get('filename') or kind}]")
    return "\n".join(texts)


def _dump_value(tool: FunctionTool, value: object, output: str) -> object | None:
    """Return a value as JSON data if it can be read back as the same value, else `None`."""
    if isinstance(value, str) or sdk.output_adapter(tool) is not None:
        return None
    try:
        dumped = cast(object, json.loads(_adapter(tool).dump_json(value)))
        loaded = _load_value(tool, dumped)
    except (ValueError, TypeError, PydanticUserError):
        return None
    return dumped if type(loaded) is type(value) and str(loaded) == output else None


def _load_value(tool: FunctionTool, dumped: object) -> object:
    try:
        return _adapter(tool).validate_json(json.dumps(dumped))
    except (ValueError, TypeError, PydanticUserError):
        return None


def _adapter(tool: FunctionTool | None) -> TypeAdapter[Any]:
    """Return the adapter of the tool's declared return type; plain JSON data without one."""
    try:
        declared = typing.get_type_hints(cast(Any, tool).__wrapped__).get("return", Any)
        return TypeAdapter(declared)
    except (AttributeError, NameError, TypeError, PydanticSchemaGenerationError):
        return TypeAdapter(Any)
