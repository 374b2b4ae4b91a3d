"""What both wire forms of a reply have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dex_agents_testkit.model_server.calls import call_texts
from dex_agents_testkit.model_server.conversation import Conversation
from dex_agents_testkit.model_server.script import ModelReply, ReplyUsage

Event = Mapping[str, Any]


def cut_pieces(reply: ModelReply, text: str) -> tuple[str, ...]:
    """Cut a text into the pieces that are streamed one by one."""
    if reply.pieces is not None and text == "".join(reply.pieces):
        return reply.pieces
    size = reply.piece_characters
    return tuple(text[start : start + size] for start in range(0, len(text), size))


def usage_of(reply: ModelReply, conversation: Conversation) -> ReplyUsage | None:
    """Return the scripted counts, or a stable estimate of four characters to a token."""
    if not reply.reports_usage:
        return None
    if reply.usage is not None:
        return reply.usage
    sent = len(conversation.instructions) + sum(len(item.text) for item in conversation.items)
    said = len(reply.text or reply.refusal or "") + sum(len(text) for text in reply.reasoning)
    said += sum(len(text) for call in reply.tool_calls for text in call_texts(call))
    return ReplyUsage(input_tokens=max(1, sent // 4), output_tokens=max(1, said // 4))


def error_body(message: str, error_type: str, parameter: str | None = None) -> dict[str, Any]:
    """Build the error object that the real API puts into a body."""
    return {
        "error": {"message": message, "type": error_type, "param": parameter, "code": error_type}
    }


def encode_event(event: Event, *, named: bool) -> bytes:
    """Write one server-sent event; the Responses API also names each event's type."""
    head = f"event: {event['type']}\n" if named else ""
    return f"{head}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
