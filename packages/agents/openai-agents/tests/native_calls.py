"""Scripted calls of tools that are no function tools, and responses that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents import Usage
from agents.testing import ModelStep
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseCompletedEvent,
    ResponseCustomToolCall,
    ResponseFunctionShellToolCall,
)
from openai.types.responses.response_output_item import McpApprovalRequest


def custom_call(name: str, call_id: str, text: str) -> ResponseCustomToolCall:
    """A call of a custom tool."""
    return ResponseCustomToolCall(
        type="custom_tool_call", id=f"ctc_{call_id}", call_id=call_id, name=name, input=text
    )


def shell_call(call_id: str, *commands: str, **limits: int) -> ResponseFunctionShellToolCall:
    """A call of the shell tool."""
    return ResponseFunctionShellToolCall.model_validate(
        {
            "type": "shell_call",
            "id": f"sh_{call_id}",
            "call_id": call_id,
            "status": "completed",
            "action": {"commands": list(commands), **limits},
        }
    )


def patch_call(call_id: str, kind: str, path: str, diff: str = "+a") -> ResponseApplyPatchToolCall:
    """A call of the apply-patch tool."""
    operation = {"type": kind, "path": path, **({} if kind == "delete_file" else {"diff": diff})}
    return ResponseApplyPatchToolCall.model_validate(
        {
            "type": "apply_patch_call",
            "id": f"ap_{call_id}",
            "call_id": call_id,
            "status": "completed",
            "operation": operation,
        }
    )


def approval_request(request_id: str, name: str, arguments: str = "{}") -> McpApprovalRequest:
    """A provider's question whether it may call a tool of the server `crm`."""
    return McpApprovalRequest(
        type="mcp_approval_request",
        id=request_id,
        server_label="crm",
        name=name,
        arguments=arguments,
    )


def whole(*output: Any, tokens: int = 15) -> ModelStep:
    """A scripted response that is streamed in one piece, whatever items it has."""
    return ModelStep(output=list(output), stream_events=whole_response(output, tokens))


def whole_response(output: Sequence[Any], tokens: int = 15) -> list[Any]:
    """A stream that brings a response in one piece."""
    return [
        ResponseCompletedEvent.model_validate(
            {
                "type": "response.completed",
                "sequence_number": 0,
                "response": {
                    "id": "r",
                    "created_at": 0,
                    "model": "m",
                    "object": "response",
                    "output": [item.model_dump(exclude_unset=True) for item in output],
                    "tool_choice": "auto",
                    "tools": [],
                    "parallel_tool_calls": True,
                    "usage": {
                        "input_tokens": tokens - 5,
                        "output_tokens": 5,
                        "total_tokens": tokens,
                        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                        "output_tokens_details": {"reasoning_tokens": 0},
                    },
                },
            }
        )
    ]


def spent(tokens: int = 15) -> Usage:
    """What a response of `whole` reports."""
    return Usage(requests=1, input_tokens=tokens - 5, output_tokens=5, total_tokens=tokens)
