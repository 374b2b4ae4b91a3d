"""Between the framework's items and the session's messages: one item, one message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, cast

from agents import ItemHelpers, MessageOutputItem, RunItem, ToolCallOutputItem
from pydantic_core import to_json

from dex_agents import AgentMessage, FrameworkMessage, MessageRole, TurnFailedError
from dex_agents_openai_agents._stored.call_ids import with_unique_call_ids

#: Form of `AgentMessage.framework_item`. A reader for every released form stays here.
ITEM_FORMAT: Final = 1

#: An input item of the Responses form, as plain JSON data.
InputItem = dict[str, Any]


def build_user_item(text: str) -> InputItem:
    """Return the input item of a user message."""
    return {"role": "user", "content": text}


def input_items(new_items: Iterable[RunItem], *, omit_reasoning_ids: bool) -> list[InputItem]:
    """Return what a run produced as items that can be sent back to a model.

    Args:
        new_items: Items of the run; pending approvals are skipped, they are no model input.
        omit_reasoning_ids: Whether reasoning is replayed without ids, for providers that refuse
            ids they did not keep.
    """
    return [
        _input_item(item, omit_reasoning_ids)
        for item in new_items
        if item.type != "tool_approval_item"
    ]


def _input_item(item: RunItem, omit_reasoning_ids: bool) -> InputItem:
    plain = cast(InputItem, json.loads(json.dumps(item.to_input_item())))
    if omit_reasoning_ids and plain.get("type") == "reasoning":
        plain.pop("id", None)
    return plain


def framework_messages(
    replayed: Sequence[InputItem],
    new_items: Iterable[RunItem],
    *,
    last_agent: str,
    final_output: object,
    omit_reasoning_ids: bool,
) -> tuple[FrameworkMessage, ...]:
    """Return the messages to store for a finished turn.

    An answer that code made of the tools' values is in no item. It is stored behind the items for
    people to read, and never sent to a model, as in a plain run.

    Args:
        replayed: Items of the turn that the last run got as input, after a replay.
        new_items: Items the run produced.
        last_agent: Agent that ended the turn; kept with the turn's last item.
        final_output: The run's final output.
        omit_reasoning_ids: See `input_items`.
    """
    entries: list[tuple[InputItem | None, str, str]] = [
        (item, item_text(item), "") for item in replayed
    ]
    produced = [item for item in new_items if item.type != "tool_approval_item"]
    for item in produced:
        plain = _input_item(item, omit_reasoning_ids)
        text = _message_text(item) if isinstance(item, MessageOutputItem) else item_text(plain)
        entries.append((plain, text, item.agent.name))
    if produced and isinstance(produced[-1], ToolCallOutputItem):
        answer = _answer_of_tools(produced, final_output)
        if answer != entries[-1][1]:
            entries.append((None, answer, last_agent))
    last = len(entries) - 1
    return tuple(
        FrameworkMessage(
            role=_role(item),
            framework_item=encode_item(item, last_agent if index == last else None),
            text=_printable(text),
            agent_name=agent_name,
        )
        for index, (item, text, agent_name) in enumerate(entries)
    )


def _answer_of_tools(items: Iterable[RunItem], final_output: object) -> str:
    """Return the text of a final output that the model did not write."""
    for item in items:
        if not isinstance(item, ToolCallOutputItem):
            continue
        text = item_text(_input_item(item, False))
        # Of an image only its item tells; written out as text, it would be a wall of base64.
        if item.output is final_output or (not text and str(item.output) == final_output):
            return text
    if isinstance(final_output, str):
        return final_output
    try:
        return to_json(final_output).decode()
    except ValueError:
        return str(final_output)


def encode_item(item: InputItem | None, next_agent: str | None = None) -> str:
    """Return the stored form of one item.

    Args:
        item: The item; `None` for a message that no model is sent.
        next_agent: Agent that takes the next user message, with the last item of a turn.
    """
    envelope: dict[str, Any] = {"v": ITEM_FORMAT, "item": item}
    if next_agent is not None:
        envelope["next_agent"] = next_agent
    text = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))
    if _is_encodable(text):
        return text
    # Models produce half of a surrogate pair now and then; escaped, it survives storage.
    return json.dumps(envelope, separators=(",", ":"))


class History:
    """The stored conversation, decoded.

    Args:
        messages: Every stored message in order.

    Raises:
        TurnFailedError: A stored item cannot be read. Nothing is left out silently.
    """

    def __init__(self, messages: Sequence[AgentMessage]) -> None:
        self._turns: list[tuple[str, list[InputItem]]] = []
        self.next_agent: str | None = None
        for turn_id, group in groupby(messages, key=lambda message: message.turn_id):
            items: list[InputItem] = []
            for message in group:
                item, next_agent = decode_item(message)
                if item is not None:
                    items.append(item)
                self.next_agent = next_agent or self.next_agent
            self._turns.append((turn_id, items))

    def render(self, taken_call_ids: Iterable[str]) -> list[InputItem]:
        """Return the model input of the conversation.

        Args:
            taken_call_ids: Ids that the running turn uses; older uses get another id.
        """
        return with_unique_call_ids(self._turns, taken_call_ids)


def decode_item(message: AgentMessage) -> tuple[InputItem | None, str | None]:
    """Read the stored form of one item; the item is `None` where no model is sent one.

    Raises:
        TurnFailedError: It is damaged, of a newer form, or not from this package.
    """
    problem = "is no JSON text"
    try:
        envelope = cast(object, json.loads(message.framework_item))
    except ValueError:
        envelope = None
    if isinstance(envelope, Mapping):
        envelope = cast(Mapping[str, Any], envelope)
        version = envelope.get("v")
        item = envelope.get("item", "missing")
        if version == ITEM_FORMAT and (item is None or isinstance(item, dict)):
            next_agent = envelope.get("next_agent")
            return (
                cast("InputItem | None", item),
                next_agent if isinstance(next_agent, str) else None,
            )
        problem = (
            f"has form {version!r}, this release reads form {ITEM_FORMAT}"
            if version != ITEM_FORMAT
            else "has no item"
        )
    raise TurnFailedError(
        f"stored message {message.sequence} cannot be given to the model: its framework item "
        f"{problem}. Use the release that wrote it, or start a new session",
        "StoredItemUnreadable",
    )


def item_text(item: Mapping[str, Any]) -> str:
    """Return what a person reads of an item; empty for calls and reasoning."""
    if item.get("role") is not None:
        return content_text(item.get("content"))
    if str(item.get("type", "")).endswith("_output"):
        return content_text(item.get("output"))
    return ""


def content_text(content: object) -> str:
    """Return the text of a content value: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts: list[str] = []
    for part in cast(list[object], content):
        if isinstance(part, Mapping):
            fields = cast(Mapping[str, object], part)
            text = fields.get("text") or fields.get("refusal")
            if isinstance(text, str):
                texts.append(text)
    return "\n".join(texts)


def _message_text(item: MessageOutputItem) -> str:
    return ItemHelpers.text_message_output(item) or content_text(
        item.to_input_item().get("content")
    )


def _role(item: Mapping[str, Any] | None) -> MessageRole:
    if item is None:
        return MessageRole.ASSISTANT
    role = item.get("role")
    if role == "user":
        return MessageRole.USER
    if role in ("system", "developer"):
        return MessageRole.SYSTEM
    if str(item.get("type", "")).endswith("_output"):
        return MessageRole.TOOL
    return MessageRole.ASSISTANT


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(text: str) -> str:
    return text if _is_encodable(text) else text.encode("utf-8", "replace").decode()
