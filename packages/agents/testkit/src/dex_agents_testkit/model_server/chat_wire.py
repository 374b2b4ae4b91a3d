"""A reply in the form of the Chat Completions API: one object, or a list of chunks.

The API has no place for reasoning summaries; they go into `reasoning_content`, the field that
several compatible servers use and that the OpenAI Agents SDK reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dex_agents_testkit.model_server.calls import ReplyToolCall, call_type
from dex_agents_testkit.model_server.conversation import Conversation
from dex_agents_testkit.model_server.replies import Event, cut_pieces, usage_of
from dex_agents_testkit.model_server.script import ModelReply, ReplyUsage

_FINISH_REASONS: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}


class NotInThisApiError(ValueError):
    """The reply has something that Chat Completions cannot say."""


def completion_object(
    reply: ModelReply, conversation: Conversation, created_at: float
) -> dict[str, Any]:
    """Build the whole completion, as a request without streaming gets it.

    Raises:
        NotInThisApiError: The reply calls another tool than a function.
    """
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text,
        "refusal": reply.refusal,
        "annotations": [],
    }
    if reply.reasoning:
        message["reasoning_content"] = "\n".join(reply.reasoning)
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in _function_calls(reply)
        ]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish_reason(reply),
    }
    completion = _shell(conversation, created_at, "chat.completion")
    completion["choices"] = [choice]
    completion["usage"] = _usage_object(usage_of(reply, conversation))
    return completion


def completion_chunks(
    reply: ModelReply, conversation: Conversation, created_at: float, *, with_usage: bool
) -> list[Event]:
    """List the chunks of a streamed completion; `with_usage` is the request's `include_usage`.

    Raises:
        NotInThisApiError: The reply calls another tool than a function.
    """
    shell = _shell(conversation, created_at, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**shell, "choices": [choice], **({"usage": None} if with_usage else {})}

    chunks = [chunk({"role": "assistant", "content": "" if reply.text is not None else None})]
    chunks.extend(chunk(delta) for delta in _deltas(reply))
    chunks.append(chunk({}, _finish_reason(reply)))
    if with_usage:
        usage = _usage_object(usage_of(reply, conversation))
        chunks.append({**shell, "choices": [], "usage": usage})
    return chunks


def _deltas(reply: ModelReply) -> Iterator[dict[str, Any]]:
    for piece in cut_pieces(reply, "\n".join(reply.reasoning)):
        yield {"reasoning_content": piece}
    for piece in cut_pieces(reply, reply.text or ""):
        yield {"content": piece}
    for piece in cut_pieces(reply, reply.refusal or ""):
        yield {"refusal": piece}
    for index, call in enumerate(_function_calls(reply)):
        opening = {"name": call.name, "arguments": ""}
        yield {
            "tool_calls": [
                {"index": index, "id": call.call_id, "type": "function", "function": opening}
            ]
        }
        for piece in cut_pieces(reply, call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _shell(conversation: Conversation, created_at: float, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{conversation.fingerprint()}",
        "object": kind,
        "created": int(created_at),
        "model": conversation.model,
        "system_fingerprint": None,
    }


def _function_calls(reply: ModelReply) -> Iterator[ReplyToolCall]:
    for call in reply.tool_calls:
        if not isinstance(call, ReplyToolCall):
            raise NotInThisApiError(
                f"the reply has a {call_type(call)}, and Chat Completions knows function calls only"
            )
        yield call


def _finish_reason(reply: ModelReply) -> str:
    if reply.incomplete is not None:
        return _FINISH_REASONS[reply.incomplete]
    return "tool_calls" if reply.tool_calls else "stop"


def _usage_object(usage: ReplyUsage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
