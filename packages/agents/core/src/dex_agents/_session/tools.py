"""How the record of a tool call becomes final."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from dex_agents._json_form import encoded_bytes
from dex_agents._session.text import (
    MAX_TOOL_ERROR_BYTES,
    bound_bytes,
)
from dex_agents.errors import ToolExecutionError
from dex_agents.runner import ToolExecutionResult
from dex_agents.values import (
    AgentToolCall,
    AgentToolOutput,
    AgentUsage,
    ToolCallCompleted,
    ToolCallStatus,
    ToolEffect,
)

#: A result longer than this, as stored, is kept apart from its record.
MAX_RESULT_BYTES_IN_RECORD: Final = 8 * 1024
#: Characters of a long output that its record keeps.
OUTPUT_PREVIEW_CHARACTERS: Final = 2000


@dataclass(frozen=True)
class FinalCall:
    """A call that is over.

    Attributes:
        record: Its final record.
        output: Its whole result when that is kept apart from the record.
        left_out: What the runner gave and cannot be stored, for the log; empty for nothing.
    """

    record: AgentToolCall
    output: AgentToolOutput | None = None
    left_out: str = ""

    def completed(self) -> ToolCallCompleted:
        """Return the message that tells the waiting turn."""
        return ToolCallCompleted(
            self.record.tool_call_id,
            self.record.turn_id,
            encoded_bytes(self.record),
            0 if self.output is None else encoded_bytes(self.output),
        )


def finish_with_result(record: AgentToolCall, result: object, max_output_bytes: int) -> FinalCall:
    """Record what a tool returned.

    A result that cannot be kept says nothing about the effect, so a write becomes
    `outcome_unknown` and only a read becomes `failed`.

    Args:
        record: Record of the running call.
        result: What the runner returned; anything but a `ToolExecutionResult` is its fault.
        max_output_bytes: Limit of the result as stored.
    """
    if not isinstance(result, ToolExecutionResult):
        return FinalCall(
            _without_result(
                record, f"the runner returned {type(result).__name__} for tool {record.tool_name!r}"
            )
        )
    if not isinstance(result.output, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a runner without types
        return FinalCall(
            _without_result(
                record,
                f"tool {record.tool_name!r} returned {type(result.output).__name__}, not text",
                result.usage,
            )
        )
    payload = (
        record.framework_payload if result.framework_payload is None else result.framework_payload
    )
    whole = AgentToolOutput(result.output, payload)
    size = encoded_bytes(whole)
    if size > max_output_bytes:
        return FinalCall(
            _without_result(
                record,
                f"tool {record.tool_name!r} returned {size} bytes as stored; "
                f"the limit is {max_output_bytes}",
                result.usage,
            )
        )
    if size <= MAX_RESULT_BYTES_IN_RECORD:
        return FinalCall(
            replace(
                record,
                status=ToolCallStatus.SUCCEEDED,
                output=result.output,
                framework_payload=record.framework_payload if payload is None else payload,
                usage=result.usage,
            )
        )
    return FinalCall(
        replace(
            record,
            status=ToolCallStatus.SUCCEEDED,
            output=result.output[:OUTPUT_PREVIEW_CHARACTERS],
            usage=result.usage,
            is_output_cut=True,
        ),
        whole,
    )


def finish_with_error(
    record: AgentToolCall, error: ToolExecutionError, max_output_bytes: int
) -> FinalCall:
    """Record a failure that the model should read.

    A payload that cannot be kept takes nothing from the failure: the call stays `failed` with its
    message, so that a write that did nothing does not become one whose outcome is unknown.

    Args:
        record: Record of the running call.
        error: What the runner raised.
        max_output_bytes: Limit of the payload as stored.
    """
    failed = replace(
        record,
        status=ToolCallStatus.FAILED,
        error=bound_bytes(error.message, MAX_TOOL_ERROR_BYTES),
    )
    payload = error.framework_payload
    if payload is None:
        return FinalCall(failed)
    if not isinstance(payload, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a runner without types
        return FinalCall(failed, left_out=f"a payload of type {type(payload).__name__}, not text")
    apart = AgentToolOutput(None, payload)
    size = encoded_bytes(apart)
    if size > max_output_bytes:
        return FinalCall(
            failed,
            left_out=f"a payload of {size} bytes as stored; the limit is {max_output_bytes}",
        )
    if size <= MAX_RESULT_BYTES_IN_RECORD:
        return FinalCall(replace(failed, framework_payload=payload))
    return FinalCall(failed, apart)


def finish_after_crash(record: AgentToolCall, detail: str) -> FinalCall:
    """Record that the attempts are used up: a read `failed`, a write is `outcome_unknown`."""
    return FinalCall(_without_result(record, detail))


def finish_with_unknown_outcome(record: AgentToolCall, detail: str) -> FinalCall:
    """Record that the only attempt of a call was lost."""
    return FinalCall(
        replace(
            record,
            status=ToolCallStatus.OUTCOME_UNKNOWN,
            error=bound_bytes(detail, MAX_TOOL_ERROR_BYTES),
        )
    )


def join_output(record: AgentToolCall, output: AgentToolOutput | None) -> AgentToolCall:
    """Return a record with its whole result.

    Args:
        record: A final record.
        output: What is kept apart from it, if anything.
    """
    if output is None:
        return record
    payload = output.framework_payload
    return replace(
        record,
        output=output.output,
        framework_payload=record.framework_payload if payload is None else payload,
        is_output_cut=False,
    )


def _without_result(
    record: AgentToolCall, detail: str, usage: AgentUsage | None = None
) -> AgentToolCall:
    is_read = record.effect is ToolEffect.READ
    return replace(
        record,
        status=ToolCallStatus.FAILED if is_read else ToolCallStatus.OUTCOME_UNKNOWN,
        error=bound_bytes(detail, MAX_TOOL_ERROR_BYTES),
        usage=usage,
    )
