"""The one table from what went wrong to the gRPC status that says so.

The SDK picks its exception class from the sub-status inside `grpc-status-details-bin`, and ignores
that trailer unless the status packed in it repeats the outer code and message exactly. It also
loses the trailer when message and trailer together pass 8 KiB, so every text is cut here.
"""

from __future__ import annotations

from typing import Final, NoReturn, Protocol

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf import any_pb2
from google.rpc import status_pb2  # pyright: ignore[reportMissingTypeStubs]  # it has none

from dex_embedded._runtime.call_errors import CallError, CallErrorKind
from dex_embedded._wire.enums import proto_enum

DETAILS_KEY: Final = "grpc-status-details-bin"
_MESSAGE_BYTES: Final = 256
_DETAIL_BYTES: Final = 1024
_TYPE_BYTES: Final = 256
_STACK_BYTES: Final = 3072

Code = grpc.StatusCode
STATUS_OF: Final[dict[CallErrorKind, tuple[grpc.StatusCode, int]]] = {
    CallErrorKind.INVALID_ARGUMENT: (Code.INVALID_ARGUMENT, pb.ERROR_SUB_STATUS_UNCATEGORIZED),
    CallErrorKind.UNAUTHENTICATED: (Code.UNAUTHENTICATED, pb.ERROR_SUB_STATUS_UNCATEGORIZED),
    CallErrorKind.FLOW_ALREADY_STARTED: (
        Code.ALREADY_EXISTS,
        pb.ERROR_SUB_STATUS_FLOW_ALREADY_STARTED,
    ),
    CallErrorKind.FLOW_NOT_EXISTS: (Code.NOT_FOUND, pb.ERROR_SUB_STATUS_FLOW_NOT_EXISTS),
    CallErrorKind.LOCKED: (Code.ABORTED, pb.ERROR_SUB_STATUS_WORKER_API_ERROR),
    CallErrorKind.WORKER_FAILED: (
        Code.FAILED_PRECONDITION,
        pb.ERROR_SUB_STATUS_WORKER_API_ERROR,
    ),
    CallErrorKind.CHANNEL_MESSAGE_NOT_FOUND: (
        Code.NOT_FOUND,
        pb.ERROR_SUB_STATUS_CHANNEL_MESSAGE_NOT_FOUND,
    ),
    CallErrorKind.LONG_POLL_TIMEOUT: (
        Code.DEADLINE_EXCEEDED,
        pb.ERROR_SUB_STATUS_LONG_POLL_TIME_OUT,
    ),
    CallErrorKind.REQUEST_TIMEOUT: (
        Code.DEADLINE_EXCEEDED,
        pb.ERROR_SUB_STATUS_REQUEST_TIMEOUT,
    ),
    CallErrorKind.FAILED_PRECONDITION: (
        Code.FAILED_PRECONDITION,
        pb.ERROR_SUB_STATUS_UNCATEGORIZED,
    ),
    CallErrorKind.RESOURCE_EXHAUSTED: (
        Code.RESOURCE_EXHAUSTED,
        pb.ERROR_SUB_STATUS_UNCATEGORIZED,
    ),
    CallErrorKind.STOPPING: (Code.UNAVAILABLE, pb.ERROR_SUB_STATUS_UNCATEGORIZED),
    CallErrorKind.OVERLOADED: (Code.UNAVAILABLE, pb.ERROR_SUB_STATUS_UNCATEGORIZED),
    CallErrorKind.UNIMPLEMENTED: (Code.UNIMPLEMENTED, pb.ERROR_SUB_STATUS_UNCATEGORIZED),
    CallErrorKind.INTERNAL: (Code.INTERNAL, pb.ERROR_SUB_STATUS_UNCATEGORIZED),
}


class Abortable(Protocol):
    """The part of a gRPC call that ends it with a status."""

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: tuple[tuple[str, bytes], ...] = (),
    ) -> NoReturn: ...


async def abort_with(context: Abortable, error: CallError) -> NoReturn:
    """Ends a call with the status that stands for `error`."""
    code, message, trailer = status_of(error)
    await context.abort(code, message, trailing_metadata=((DETAILS_KEY, trailer),))


def status_of(error: CallError) -> tuple[grpc.StatusCode, str, bytes]:
    """Returns gRPC code, gRPC message and the serialized trailer for `error`."""
    code, sub_status = STATUS_OF[error.kind]
    response = pb.ServiceErrorResponse(
        detail=cut_text(error.message, _DETAIL_BYTES),
        sub_status=proto_enum(pb.ErrorSubStatus, sub_status),
    )
    if error.dispatch is not None:
        response.dispatch_task_error_reason = proto_enum(
            pb.DispatchTaskErrorReason, error.dispatch.value
        )
    if error.worker is not None:
        response.original_worker_error_detail = cut_text(error.worker.detail, _DETAIL_BYTES)
        response.original_worker_error_type = cut_text(error.worker.error_type, _TYPE_BYTES)
        response.original_worker_error_status = error.worker.grpc_status
        response.original_worker_error_stack_trace = cut_text(
            error.worker.stack_trace, _STACK_BYTES
        )
    packed = any_pb2.Any()
    packed.Pack(response)
    message = cut_text(error.message, _MESSAGE_BYTES)
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=message, details=[packed])
    return code, message, status.SerializeToString()


def cut_text(text: str, limit: int) -> str:
    """Cuts `text` to `limit` bytes of UTF-8, marking the cut; lone surrogates are replaced."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    return raw[: limit - 3].decode("utf-8", "ignore") + "..."
