"""Tool calls of a reply, one class for each kind that the wire knows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from dex_agents_testkit._script_fields import ScriptError, ScriptFields
from dex_agents_testkit.model_server.templates import check_template

CALL_TYPES: Final = ("function_call", "custom_tool_call", "shell_call", "apply_patch_call")
OPERATION_TYPES: Final = ("create_file", "update_file", "delete_file")


@dataclass(frozen=True, slots=True)
class ReplyToolCall:
    """A call of a function tool. Without `call_id` an id is made from the conversation."""

    name: str
    arguments: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReplyCustomCall:
    """A call of a custom tool, which takes any text."""

    name: str
    input: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReplyShellCall:
    """A call of the shell tool."""

    commands: tuple[str, ...]
    timeout_ms: int | None = None
    max_output_length: int | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReplyPatchCall:
    """A call of the apply-patch tool; `diff` is None for `delete_file`."""

    operation: str
    path: str
    diff: str | None = None
    call_id: str | None = None


ReplyCall = ReplyToolCall | ReplyCustomCall | ReplyShellCall | ReplyPatchCall


def call_type(call: ReplyCall) -> str:
    """Return the type of the call's item in the Responses API."""
    match call:
        case ReplyToolCall():
            return "function_call"
        case ReplyCustomCall():
            return "custom_tool_call"
        case ReplyShellCall():
            return "shell_call"
        case ReplyPatchCall():
            return "apply_patch_call"


def call_texts(call: ReplyCall) -> tuple[str, ...]:
    """Return what the model has to write for a call."""
    match call:
        case ReplyToolCall(name, arguments):
            return (name, arguments)
        case ReplyCustomCall(name, text):
            return (name, text)
        case ReplyShellCall(commands):
            return commands
        case ReplyPatchCall(operation, path, diff):
            return (operation, path, diff or "")


def read_call(value: object, place: str) -> ReplyCall:
    """Read one entry of `tool_calls`.

    Raises:
        ScriptError: The entry is no call; the message names its place.
    """
    fields = ScriptFields(value, place)
    kind = fields.text("type", "function_call")
    call_id = fields.optional_text("call_id")
    call: ReplyCall
    match kind:
        case "function_call":
            call = _read_function_call(fields, call_id)
        case "custom_tool_call":
            call = ReplyCustomCall(fields.text("name"), fields.text("input"), call_id)
        case "shell_call":
            call = ReplyShellCall(
                fields.texts("commands"),
                fields.optional_integer("timeout_ms"),
                fields.optional_integer("max_output_length"),
                call_id,
            )
            if not call.commands:
                raise fields.error("commands", "a shell call needs at least one command")
        case "apply_patch_call":
            call = _read_patch_call(fields.fields("operation"), call_id)
        case _:
            raise fields.error("type", f"expected one of {', '.join(CALL_TYPES)}, found {kind!r}")
    fields.end()
    for text in call_texts(call):
        check_template(text, place)
    return call


def _read_function_call(fields: ScriptFields, call_id: str | None) -> ReplyToolCall:
    handoff = fields.optional_text("handoff")
    if handoff is not None:
        # The name the OpenAI Agents SDK gives the handoff tool of an agent by default.
        name = "transfer_to_" + re.sub(r"[^a-z0-9_]", "_", handoff.lower())
    else:
        name = fields.text("name")
    given = fields.anything("arguments", {})
    # Text goes out as it is, so that a script can send arguments that are not JSON.
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return ReplyToolCall(name, arguments, call_id)


def _read_patch_call(fields: ScriptFields, call_id: str | None) -> ReplyPatchCall:
    operation = fields.text("type")
    if operation not in OPERATION_TYPES:
        raise fields.error(
            "type", f"expected one of {', '.join(OPERATION_TYPES)}, found {operation!r}"
        )
    path = fields.text("path")
    diff = None if operation == "delete_file" else fields.text("diff")
    try:
        fields.end()
    except ScriptError as error:
        if operation == "delete_file" and "diff" in fields:
            raise fields.error("diff", "a file is deleted without a diff") from error
        raise
    return ReplyPatchCall(operation, path, diff, call_id)
