"""How a client call can fail, in the engine's own words.

The wire turns each kind into one gRPC status; see `dex_embedded._wire.errors`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dex_embedded._kernel import errors as kernel


class CallErrorKind(enum.Enum):
    """Sorted by what the caller can do about it."""

    INVALID_ARGUMENT = enum.auto()
    UNAUTHENTICATED = enum.auto()
    FLOW_ALREADY_STARTED = enum.auto()
    FLOW_NOT_EXISTS = enum.auto()
    LOCKED = enum.auto()
    WORKER_FAILED = enum.auto()
    CHANNEL_MESSAGE_NOT_FOUND = enum.auto()
    LONG_POLL_TIMEOUT = enum.auto()
    REQUEST_TIMEOUT = enum.auto()
    FAILED_PRECONDITION = enum.auto()
    RESOURCE_EXHAUSTED = enum.auto()
    STOPPING = enum.auto()
    OVERLOADED = enum.auto()
    UNIMPLEMENTED = enum.auto()
    INTERNAL = enum.auto()


class DispatchFailure(enum.Enum):
    """Why no worker's answer is behind a failed RPC."""

    NO_WORKER_AVAILABLE = 1
    WORKER_DISCONNECTED = 2
    UNKNOWN_NAME = 3


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """What a worker reported about a handler that failed.

    Attributes:
        detail: The text of the exception.
        error_type: The qualified name of its class.
        stack_trace: The formatted traceback, possibly empty.
        grpc_status: The gRPC code number the worker chose.
    """

    detail: str
    error_type: str
    stack_trace: str = ""
    grpc_status: int = 2


class CallError(Exception):
    """A client call that was not served.

    Attributes:
        kind: What happened.
        message: What, which one, and what to do about it.
        worker: The worker's report, if a handler failed.
        dispatch: The reason no handler answered, if none did.
    """

    def __init__(
        self,
        kind: CallErrorKind,
        message: str,
        *,
        worker: WorkerFailure | None = None,
        dispatch: DispatchFailure | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.worker = worker
        self.dispatch = dispatch


def invalid(message: str) -> CallError:
    return CallError(CallErrorKind.INVALID_ARGUMENT, message)


def flow_not_exists(flow_id: str, run_id: str = "") -> CallError:
    which = f"flow {flow_id!r}" + (f", run {run_id!r}" if run_id else "")
    return CallError(CallErrorKind.FLOW_NOT_EXISTS, f"{which} does not exist or is not active")


_KIND_OF: tuple[tuple[type[kernel.KernelError], CallErrorKind], ...] = (
    (kernel.InvalidRequestError, CallErrorKind.INVALID_ARGUMENT),
    (kernel.UnsupportedError, CallErrorKind.UNIMPLEMENTED),
    (kernel.FlowAlreadyStartedError, CallErrorKind.FLOW_ALREADY_STARTED),
    (kernel.FlowNotActiveError, CallErrorKind.FLOW_NOT_EXISTS),
    (kernel.LockConflictError, CallErrorKind.LOCKED),
    (kernel.ChannelMessageNotFoundError, CallErrorKind.CHANNEL_MESSAGE_NOT_FOUND),
    (kernel.InvalidResultError, CallErrorKind.WORKER_FAILED),
)


def from_kernel(error: kernel.KernelError) -> CallError:
    """The call error that stands for a refusal of the kernel."""
    for refusal, kind in _KIND_OF:
        if isinstance(error, refusal):
            return CallError(kind, str(error))
    return CallError(CallErrorKind.INTERNAL, str(error))
