"""Reading the history of a session over the protocol, on any engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

import grpc
import grpc.aio
from dex.dexpb import dex_pb2 as pb

EXECUTE_COMPLETED_EVENT: Final = "StepExecuteCompleted"
EXECUTE_FAILED_EVENT: Final = "StepExecuteFailed"
WAIT_FOR_COMPLETED_EVENT: Final = "StepWaitForCompleted"
WAIT_FOR_FAILED_EVENT: Final = "StepWaitForFailed"

_EVENTS: Final = {
    "step_execute_completed": EXECUTE_COMPLETED_EVENT,
    "step_execute_failed": EXECUTE_FAILED_EVENT,
    "step_wait_for_completed": WAIT_FOR_COMPLETED_EVENT,
    "step_wait_for_failed": WAIT_FOR_FAILED_EVENT,
}
_CALL_SECONDS: Final = 30.0

_StepEvent: TypeAlias = (
    pb.StepExecuteCompletedEvent
    | pb.StepExecuteFailedEvent
    | pb.StepWaitForCompletedEvent
    | pb.StepWaitForFailedEvent
)
_ReadPage: TypeAlias = grpc.aio.UnaryUnaryMultiCallable[
    pb.GetHistoryEventsRequest, pb.GetHistoryEventsResponse
]


@dataclass(frozen=True, slots=True)
class StepHistoryEntry:
    """One method of one Step that has ended.

    Attributes:
        event_type: `EXECUTE_COMPLETED_EVENT` or one of its siblings.
        step_type: Name of the Step.
        step_execution_id: Which execution of it.
        final_attempt: The attempt that ended it, from 1.
        step_input: The input when it is text, such as a tool call id; else empty.
        last_failure: Why the attempt before the final one failed; empty when there was none.
        committed_at: When the result became durable.
    """

    event_type: str
    step_type: str
    step_execution_id: str
    final_attempt: int
    step_input: str = ""
    last_failure: str = ""
    committed_at: datetime | None = None


async def read_step_history(server_address: str, flow_id: str) -> list[StepHistoryEntry]:
    """List the ended Steps of the current run of a session, oldest first.

    Args:
        server_address: `host:port` of the engine.
        flow_id: Session id.

    Raises:
        LookupError: The engine knows no such session.
        ConnectionError: The engine cannot be reached.
    """
    async with grpc.aio.insecure_channel(server_address) as channel:
        read_page: _ReadPage = channel.unary_unary(
            "/dex.FlowService/GetHistoryEvents",
            request_serializer=pb.GetHistoryEventsRequest.SerializeToString,
            response_deserializer=pb.GetHistoryEventsResponse.FromString,
        )
        try:
            return [entry async for entry in _entries(read_page, flow_id)]
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise LookupError(f"no session {flow_id!r} on {server_address}") from error
            raise ConnectionError(
                f"cannot read the history of {flow_id!r} on {server_address}: {error.details()}"
            ) from error


async def _entries(read_page: _ReadPage, flow_id: str) -> AsyncIterator[StepHistoryEntry]:
    token = b""
    while True:
        request = pb.GetHistoryEventsRequest(flow_id=flow_id, next_page_token=token)
        page = await read_page(request, timeout=_CALL_SECONDS)
        for event in page.events:
            kind = event.WhichOneof("payload")
            if kind in _EVENTS:
                yield _entry(event, kind)
        token = page.next_page_token
        if not token:
            return


def _entry(event: pb.FlowHistoryEvent, kind: str) -> StepHistoryEntry:
    payload: _StepEvent = getattr(event, kind)
    context = payload.context
    step_input = payload.input.step_input
    return StepHistoryEntry(
        event_type=_EVENTS[kind],
        step_type=context.step_type,
        step_execution_id=context.step_execution_id,
        final_attempt=context.final_attempt,
        step_input=step_input.string_value if step_input.HasField("string_value") else "",
        last_failure=_failure_text(_last_failure(payload, context)),
        committed_at=event.event_time.ToDatetime(tzinfo=UTC)
        if event.HasField("event_time")
        else None,
    )


def _last_failure(
    payload: _StepEvent, context: pb.StepMethodEventContext
) -> pb.StepMethodFailure | None:
    if isinstance(payload, pb.StepExecuteFailedEvent | pb.StepWaitForFailedEvent):
        return payload.output.failure
    return context.last_failure_info if context.HasField("last_failure_info") else None


def _failure_text(failure: pb.StepMethodFailure | None) -> str:
    if failure is None:
        return ""
    details = failure.details
    worker = (details.original_worker_error_type, details.original_worker_error_detail)
    return ": ".join(filter(None, worker)) or failure.backend_error or details.detail
