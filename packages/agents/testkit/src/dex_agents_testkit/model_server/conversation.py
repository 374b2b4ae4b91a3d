"""What a model request says, in one form for the Responses and the Chat Completions API.

Matching rules look only at this form, so one script serves both APIs. Nothing here keeps state: the
same request always gives the same conversation, which is what makes a repeated call answerable in
the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast


class ItemKind(StrEnum):
    """What one entry of a conversation is."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL_CALL = "tool_call"
    TOOL_OUTPUT = "tool_output"
    REASONING = "reasoning"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ConversationItem:
    """One entry: `text` is the message, the call's arguments, or the tool's output."""

    kind: ItemKind
    text: str
    tool_name: str = ""
    call_id: str = ""


class RequestError(ValueError):
    """A request body that the API would not accept; `parameter` names the field at fault."""

    def __init__(self, parameter: str, problem: str, status: int = 400) -> None:
        super().__init__(f"{parameter}: {problem}")
        self.parameter = parameter
        self.status = status


@dataclass(frozen=True, slots=True)
class Conversation:
    """The part of a request that rules may look at, and the extras that it asks for."""

    model: str
    instructions: str
    items: tuple[ConversationItem, ...]
    offered_tools: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()

    @property
    def user_texts(self) -> tuple[str, ...]:
        """The texts of all user messages, oldest first."""
        return tuple(item.text for item in self.items if item.kind is ItemKind.USER)

    @property
    def turn(self) -> int:
        """How many user messages there are, so 1 while the first one is being answered."""
        return len(self.user_texts)

    @property
    def current_turn(self) -> tuple[ConversationItem, ...]:
        """Everything after the latest user message."""
        for position in range(len(self.items) - 1, -1, -1):
            if self.items[position].kind is ItemKind.USER:
                return self.items[position + 1 :]
        return self.items

    @property
    def reply_number(self) -> int:
        """Which reply of the turn is wanted, from 1.

        The replies given so far are the runs of model output that tool outputs separate: parallel
        calls are one reply, and so is a handoff, whose call also has an output.
        """
        replies, inside = 0, False
        for item in self.current_turn:
            if item.kind is ItemKind.TOOL_OUTPUT:
                inside = False
            elif item.kind is not ItemKind.OTHER:
                replies += not inside
                inside = True
        return replies + 1

    @property
    def latest_tool_outputs(self) -> tuple[ConversationItem, ...]:
        """The tool outputs at the very end of the conversation."""
        outputs: list[ConversationItem] = []
        for item in reversed(self.items):
            if item.kind is not ItemKind.TOOL_OUTPUT:
                break
            outputs.append(item)
        return tuple(reversed(outputs))

    def tool_output(self, tool_name: str) -> str | None:
        """Return the newest output of a tool, or None when the tool has none."""
        for item in reversed(self.items):
            if item.kind is ItemKind.TOOL_OUTPUT and item.tool_name == tool_name:
                return item.text
        return None

    def fingerprint(self) -> str:
        """Return a short text that is equal exactly for equal conversations."""
        parts = [[self.instructions, *self.offered_tools]]
        parts += [[item.kind, item.text, item.tool_name, item.call_id] for item in self.items]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def read_responses_request(body: Mapping[str, Any]) -> Conversation:
    """Read a body of `POST /v1/responses`.

    Raises:
        RequestError: The body has no model or an input that is neither text nor a list, a tool
            output without its call or the reverse, or reasoning that nobody has kept.
    """
    given = body.get("input", [])
    if isinstance(given, str):
        items: tuple[ConversationItem, ...] = (ConversationItem(ItemKind.USER, given),)
        instructions: list[str] = []
    elif isinstance(given, list):
        entries = [_entry(item, "input") for item in cast("list[object]", given)]
        instructions = [
            _text_of(entry.get("content"))
            for entry in entries
            if entry.get("role") in ("system", "developer")
        ]
        if body.get("store") is False:
            _refuse_forgotten_reasoning(entries)
        items = _with_tool_names(map(_responses_item, entries), "input")
    else:
        raise RequestError("input", "expected text or a list of items")
    if isinstance(body.get("instructions"), str):
        instructions.insert(0, body["instructions"])
    includes = body.get("include")
    return Conversation(
        _model(body),
        "\n".join(instructions),
        items,
        tuple(_offered_tools(body.get("tools"))),
        tuple(map(str, cast("list[object]", includes))) if isinstance(includes, list) else (),
    )


def read_chat_request(body: Mapping[str, Any]) -> Conversation:
    """Read a body of `POST /v1/chat/completions`.

    Raises:
        RequestError: The body has no model or no list of messages, or a tool output without its
            call or the reverse.
    """
    given = body.get("messages")
    if not isinstance(given, list):
        raise RequestError("messages", "expected a list of messages")
    instructions: list[str] = []
    items: list[ConversationItem] = []
    for value in cast("list[object]", given):
        message = _entry(value, "messages")
        text = _text_of(message.get("content"))
        match message.get("role"):
            case "system" | "developer":
                instructions.append(text)
            case "user":
                items.append(ConversationItem(ItemKind.USER, text))
            case "tool":
                call_id = str(message.get("tool_call_id", ""))
                items.append(ConversationItem(ItemKind.TOOL_OUTPUT, text, call_id=call_id))
            case "assistant":
                items.extend(_assistant_message(message, text))
            case role:
                raise RequestError("messages", f"unknown role {role!r}")
    return Conversation(
        _model(body),
        "\n".join(instructions),
        _with_tool_names(items, "messages"),
        tuple(_offered_tools(body.get("tools"))),
    )


def _responses_item(entry: Mapping[str, Any]) -> ConversationItem:
    call_id = str(entry.get("call_id") or entry.get("id") or "")
    match entry.get("type", "message"), entry.get("role"):
        case "message", "user":
            return ConversationItem(ItemKind.USER, _text_of(entry.get("content")))
        case "message", "assistant":
            return ConversationItem(ItemKind.ASSISTANT, _text_of(entry.get("content")))
        case "reasoning", _:
            return ConversationItem(ItemKind.REASONING, _text_of(entry.get("summary")))
        case "function_call", _:
            name = str(entry.get("name", ""))
            arguments = str(entry.get("arguments", ""))
            return ConversationItem(ItemKind.TOOL_CALL, arguments, name, call_id)
        case "custom_tool_call", _:
            name = str(entry.get("name", ""))
            return ConversationItem(ItemKind.TOOL_CALL, str(entry.get("input")), name, call_id)
        case "shell_call", _:
            commands = _entry(entry.get("action"), "input.action").get("commands")
            text = "\n".join(map(str, cast("list[object]", commands or [])))
            return ConversationItem(ItemKind.TOOL_CALL, text, "shell", call_id)
        case "apply_patch_call", _:
            operation = _entry(entry.get("operation"), "input.operation")
            text = json.dumps(operation, ensure_ascii=False)
            return ConversationItem(ItemKind.TOOL_CALL, text, "apply_patch", call_id)
        case "shell_call_output", _:
            output = _shell_output(entry.get("output"))
            return ConversationItem(ItemKind.TOOL_OUTPUT, output, call_id=call_id)
        case (
            "function_call_output" | "custom_tool_call_output" | "apply_patch_call_output",
            _,
        ):
            output = _text_of(entry.get("output"))
            return ConversationItem(ItemKind.TOOL_OUTPUT, output, call_id=call_id)
        case _:
            return ConversationItem(ItemKind.OTHER, "")


def _assistant_message(message: Mapping[str, Any], text: str) -> Iterator[ConversationItem]:
    if text:
        yield ConversationItem(ItemKind.ASSISTANT, text)
    for value in cast("list[object]", message.get("tool_calls") or []):
        call = _entry(value, "messages.tool_calls")
        function = _entry(call.get("function", {}), "messages.tool_calls.function")
        yield ConversationItem(
            ItemKind.TOOL_CALL,
            str(function.get("arguments", "")),
            str(function.get("name", "")),
            str(call.get("id", "")),
        )


def _with_tool_names(
    items: Iterable[ConversationItem], parameter: str
) -> tuple[ConversationItem, ...]:
    """Give each output the name of its call: the wire puts only the call id on it."""
    names: dict[str, str] = {}
    unanswered: set[str] = set()
    named: list[ConversationItem] = []
    for item in items:
        if item.kind is ItemKind.TOOL_CALL:
            names[item.call_id] = item.tool_name
            unanswered.add(item.call_id)
        elif item.kind is ItemKind.TOOL_OUTPUT:
            if item.call_id not in names:
                raise RequestError(parameter, f"no tool call for the output {item.call_id!r}")
            unanswered.discard(item.call_id)
            item = ConversationItem(item.kind, item.text, names[item.call_id], item.call_id)
        named.append(item)
    if unanswered:
        missing = ", ".join(repr(call_id) for call_id in sorted(unanswered))
        raise RequestError(parameter, f"no output for the tool call {missing}")
    return tuple(named)


def _refuse_forgotten_reasoning(entries: Iterable[Mapping[str, Any]]) -> None:
    for entry in entries:
        is_kept_here = entry.get("type") != "reasoning" or entry.get("encrypted_content")
        if entry.get("id") and not is_kept_here:
            problem = f"no item {entry['id']!r}: nothing is kept without `store`"
            raise RequestError("input", problem, 404)


def _shell_output(output: object) -> str:
    """Return what the commands wrote, one after the other."""
    if not isinstance(output, list):
        return _text_of(output)
    parts = [_entry(part, "input.output") for part in cast("list[object]", output)]
    return "".join(f"{part.get('stdout') or ''}{part.get('stderr') or ''}" for part in parts)


def _offered_tools(tools: object) -> Iterator[str]:
    if not isinstance(tools, list):
        return
    for value in cast("list[object]", tools):
        tool = _entry(value, "tools")
        nested = tool.get("function")
        name = cast("dict[str, Any]", nested).get("name") if isinstance(nested, dict) else None
        yield str(name or tool.get("name") or tool.get("type") or "")


def _text_of(content: object) -> str:
    """Flatten content, which is text or a list of typed parts, to its text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content)
    texts: list[str] = []
    for part in cast("list[object]", content):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            texts.append(str(fields.get("text") or fields.get("refusal") or ""))
    return "".join(texts)


def _entry(value: object, parameter: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(parameter, "every entry must be an object")
    return cast("dict[str, Any]", value)


def _model(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("model", "expected the name of a model")
    return model
