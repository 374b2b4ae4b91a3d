"""A reply in the form of the Responses API: one object, or the events that build it up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dex_agents_testkit.model_server.calls import (
    ReplyCall,
    ReplyCustomCall,
    ReplyPatchCall,
    ReplyShellCall,
    ReplyToolCall,
)
from dex_agents_testkit.model_server.conversation import Conversation
from dex_agents_testkit.model_server.replies import Event, cut_pieces, usage_of
from dex_agents_testkit.model_server.script import ModelReply, ReplyUsage

#: What a request includes to get reasoning in the form that it can send back.
ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"


def response_object(
    reply: ModelReply, conversation: Conversation, created_at: float
) -> dict[str, Any]:
    """Build the whole response, as a request without streaming gets it."""
    response = _shell(conversation, created_at, _final_status(reply))
    if reply.incomplete is not None:
        response["incomplete_details"] = {"reason": reply.incomplete}
    response["output"] = list(_items(reply, conversation))
    response["usage"] = _usage_object(usage_of(reply, conversation))
    return response


def response_events(
    reply: ModelReply, conversation: Conversation, created_at: float
) -> list[Event]:
    """List the events of a streamed response, from `response.created` to the closing one."""
    events: list[dict[str, Any]] = []
    started = _shell(conversation, created_at, "in_progress")
    events.append({"type": "response.created", "response": started})
    events.append({"type": "response.in_progress", "response": started})
    for index, item in enumerate(_items(reply, conversation)):
        events.extend(_item_events(item, index, reply))
    done = response_object(reply, conversation, created_at)
    events.append({"type": f"response.{done['status']}", "response": done})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def failed_object(
    conversation: Conversation, created_at: float, code: str, message: str
) -> dict[str, Any]:
    """Build the response that reports an error of the model."""
    response = _shell(conversation, created_at, "failed")
    response["error"] = {"code": code, "message": message}
    return response


def failed_event(response: dict[str, Any], sequence_number: int) -> Event:
    """Build the event that ends a stream with a failed response."""
    return {
        "type": "response.failed",
        "response": response,
        "sequence_number": sequence_number,
    }


def _shell(conversation: Conversation, created_at: float, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{conversation.fingerprint()}",
        "object": "response",
        "created_at": created_at,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": conversation.instructions or None,
        "metadata": {},
        "model": conversation.model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _final_status(reply: ModelReply) -> str:
    return "completed" if reply.incomplete is None else "incomplete"


def _items(reply: ModelReply, conversation: Conversation) -> Iterator[dict[str, Any]]:
    items = list(_completed_items(reply, conversation))
    # What was being written when the response ended is incomplete too.
    if reply.incomplete is not None and items and "status" in items[-1]:
        items[-1]["status"] = "incomplete"
    yield from items


def _completed_items(reply: ModelReply, conversation: Conversation) -> Iterator[dict[str, Any]]:
    key = conversation.fingerprint()
    if reply.reasoning or reply.encrypted_reasoning is not None:
        summary = [{"type": "summary_text", "text": text} for text in reply.reasoning]
        item: dict[str, Any] = {"id": f"rs_{key}", "type": "reasoning", "summary": summary}
        if ENCRYPTED_REASONING in conversation.includes:
            item["encrypted_content"] = reply.encrypted_reasoning
        yield item
    if reply.text is not None or reply.refusal is not None:
        yield {
            "id": f"msg_{key}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [_content_part(reply)],
        }
    for position, call in enumerate(reply.tool_calls):
        yield _call_item(call, f"{key}_{position}")


def _call_item(call: ReplyCall, key: str) -> dict[str, Any]:
    match call:
        case ReplyToolCall():
            return {
                "id": f"fc_{key}",
                "type": "function_call",
                "status": "completed",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            }
        case ReplyCustomCall():
            return {
                "id": f"ctc_{key}",
                "type": "custom_tool_call",
                "call_id": call.call_id,
                "name": call.name,
                "input": call.input,
            }
        case ReplyShellCall():
            return {
                "id": f"sh_{key}",
                "type": "shell_call",
                "status": "completed",
                "call_id": call.call_id,
                "action": {
                    "commands": list(call.commands),
                    "timeout_ms": call.timeout_ms,
                    "max_output_length": call.max_output_length,
                },
            }
        case ReplyPatchCall():
            diff = {} if call.diff is None else {"diff": call.diff}
            return {
                "id": f"apc_{key}",
                "type": "apply_patch_call",
                "status": "completed",
                "call_id": call.call_id,
                "operation": {"type": call.operation, "path": call.path, **diff},
            }


def _content_part(reply: ModelReply) -> dict[str, Any]:
    if reply.refusal is not None:
        return {"type": "refusal", "refusal": reply.refusal}
    return {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}


def _item_events(item: dict[str, Any], index: int, reply: ModelReply) -> Iterator[dict[str, Any]]:
    match item["type"]:
        case "reasoning":
            return _reasoning_events(item, index, reply)
        case "message":
            return _message_events(item, index, reply)
        case "function_call":
            return _function_call_events(item, index, reply)
        case "custom_tool_call":
            return _custom_call_events(item, index, reply)
        case "shell_call":
            return _shell_call_events(item, index, reply)
        case _:
            return _patch_call_events(item, index)


def _reasoning_events(
    item: dict[str, Any], index: int, reply: ModelReply
) -> Iterator[dict[str, Any]]:
    yield _added({**item, "summary": []}, index)
    for number, part in enumerate(item["summary"]):
        place = {"item_id": item["id"], "output_index": index, "summary_index": number}
        prefix = "response.reasoning_summary"
        yield {"type": f"{prefix}_part.added", **place, "part": {**part, "text": ""}}
        for piece in cut_pieces(reply, part["text"]):
            yield {"type": f"{prefix}_text.delta", **place, "delta": piece}
        yield {"type": f"{prefix}_text.done", **place, "text": part["text"]}
        yield {"type": f"{prefix}_part.done", **place, "part": part}
    yield _done(item, index)


def _message_events(
    item: dict[str, Any], index: int, reply: ModelReply
) -> Iterator[dict[str, Any]]:
    part = item["content"][0]
    place = {"item_id": item["id"], "output_index": index, "content_index": 0}
    field = "refusal" if part["type"] == "refusal" else "text"
    prefix = "response.refusal" if field == "refusal" else "response.output_text"
    extra = {} if field == "refusal" else {"logprobs": list[Any]()}
    yield _added({**item, "status": "in_progress", "content": []}, index)
    yield {"type": "response.content_part.added", **place, "part": {**part, field: ""}}
    for piece in cut_pieces(reply, part[field]):
        yield {"type": f"{prefix}.delta", **place, "delta": piece, **extra}
    yield {"type": f"{prefix}.done", **place, field: part[field], **extra}
    yield {"type": "response.content_part.done", **place, "part": part}
    yield _done(item, index)


def _function_call_events(
    item: dict[str, Any], index: int, reply: ModelReply
) -> Iterator[dict[str, Any]]:
    place = {"item_id": item["id"], "output_index": index}
    prefix = "response.function_call_arguments"
    yield _added({**item, "status": "in_progress", "arguments": ""}, index)
    for piece in cut_pieces(reply, item["arguments"]):
        yield {"type": f"{prefix}.delta", **place, "delta": piece}
    yield {
        "type": f"{prefix}.done",
        **place,
        "name": item["name"],
        "arguments": item["arguments"],
    }
    yield _done(item, index)


def _custom_call_events(
    item: dict[str, Any], index: int, reply: ModelReply
) -> Iterator[dict[str, Any]]:
    place = {"item_id": item["id"], "output_index": index}
    prefix = "response.custom_tool_call_input"
    yield _added({**item, "input": ""}, index)
    for piece in cut_pieces(reply, item["input"]):
        yield {"type": f"{prefix}.delta", **place, "delta": piece}
    yield {"type": f"{prefix}.done", **place, "input": item["input"]}
    yield _done(item, index)


def _shell_call_events(
    item: dict[str, Any], index: int, reply: ModelReply
) -> Iterator[dict[str, Any]]:
    prefix = "response.shell_call_command"
    action = {**item["action"], "commands": list[str]()}
    yield _added({**item, "status": "in_progress", "action": action}, index)
    for number, command in enumerate(item["action"]["commands"]):
        place = {"output_index": index, "command_index": number}
        yield {"type": f"{prefix}.added", **place, "command": ""}
        for piece in cut_pieces(reply, command):
            yield {"type": f"{prefix}.delta", **place, "delta": piece}
        yield {"type": f"{prefix}.done", **place, "command": command}
    yield _done(item, index)


def _patch_call_events(item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    operation = item["operation"]
    if "diff" in operation:
        operation = {**operation, "diff": ""}
    yield _added({**item, "status": "in_progress", "operation": operation}, index)
    yield _done(item, index)


def _added(item: dict[str, Any], index: int) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _done(item: dict[str, Any], index: int) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def _usage_object(usage: ReplyUsage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
