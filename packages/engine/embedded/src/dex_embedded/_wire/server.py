"""The gRPC server: which call goes where, and what happens around each."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message

from dex_embedded._kernel.errors import KernelError
from dex_embedded._runtime.call_errors import CallError, CallErrorKind, from_kernel, invalid
from dex_embedded._runtime.engine import Engine
from dex_embedded._runtime.failure_text import place_of
from dex_embedded._runtime.faults import REPLY_AFTER, REPLY_BEFORE
from dex_embedded._runtime.frame_size import FrameTooLargeError, check_size
from dex_embedded._runtime.log_fields import about
from dex_embedded._store.errors import StoreFailedError
from dex_embedded._wire.access import AccessCheck, GuardedWorkerTasks
from dex_embedded._wire.errors import Abortable, abort_with
from dex_embedded._wire.flow_service import FlowService
from dex_embedded._wire.reply_parts import largest_parts
from dex_embedded._wire.token_file import TokenFile
from dex_embedded._wire.worker_tasks import StreamCall, WorkerTaskService

_LOGGER = logging.getLogger(__name__)

SERVED: Final[dict[str, type[Message]]] = {
    "GetServerInfo": Empty,
    "HealthCheck": Empty,
    "SyncAttributeIndexes": pb.SyncAttributeIndexRequest,
    "LoadBlobs": pb.LoadBlobsRequest,
    "StartFlow": pb.StartFlowRequest,
    "StopFlow": pb.StopFlowRequest,
    "GetFlowSummary": pb.GetFlowSummaryRequest,
    "WaitForFlow": pb.WaitForFlowRequest,
    "GetFlowState": pb.GetFlowStateRequest,
    "SearchFlows": pb.SearchFlowsRequest,
    "WaitForStepCompletion": pb.WaitForStepCompletionRequest,
    "WaitForAttribute": pb.WaitForAttributeRequest,
    "InvokeRPC": pb.InvokeRPCRequest,
    "GetAttributes": pb.GetAttributesRequest,
    "SetAttributes": pb.SetAttributesRequest,
    "PublishToChannel": pb.PublishToChannelRequest,
    "GetChannelMessages": pb.GetChannelMessagesRequest,
    "DeleteChannelMessage": pb.DeleteChannelMessageRequest,
    "SkipTimer": pb.SkipTimerRequest,
    "UpdateFlowConfig": pb.UpdateFlowConfigRequest,
    "TriggerContinueAsNew": pb.TriggerContinueAsNewRequest,
    "WriteStream": pb.WriteStreamRequest,
    "ReadStream": pb.ReadStreamRequest,
    "ListStreamMessages": pb.ListStreamMessagesRequest,
    "GetHistoryEvents": pb.GetHistoryEventsRequest,
    "WaitForHistoryEvent": pb.WaitForHistoryEventRequest,
}
"""The calls that are served, each with its request message."""

LONG_POLLS: Final = frozenset(
    {
        "WaitForFlow",
        "WaitForStepCompletion",
        "WaitForAttribute",
        "ReadStream",
        "WaitForHistoryEvent",
    }
)
"""Calls that wait for something to happen; the others are answered as soon as may be."""

READING: Final = LONG_POLLS | {
    "GetServerInfo",
    "HealthCheck",
    "LoadBlobs",
    "GetFlowSummary",
    "GetFlowState",
    "SearchFlows",
    "GetAttributes",
    "GetChannelMessages",
    "ListStreamMessages",
    "GetHistoryEvents",
}
"""Calls that change nothing, so that their reply can be refused when there is no room for it."""

REFUSED: Final = ("ResetFlow",)
"""Calls of the protocol that are answered UNIMPLEMENTED."""

_TOKENS_EVERY: Final = 1.0
"""How soon a token taken out of its file keeps tasks from streams opened with it, seconds."""

_Handler = Callable[[Any], Awaitable[Message]]


class UnaryCall(Abortable, Protocol):
    """The part of a gRPC call used here."""

    def add_done_callback(self, callback: Callable[[object], None]) -> None: ...


class Server:
    """The listening half of an engine.

    Attributes:
        address: Where it listens, as `host:port`.
    """

    def __init__(
        self, server: grpc.aio.Server, address: str, guarded: GuardedWorkerTasks | None
    ) -> None:
        self._server = server
        self._guarded = guarded
        self._timer: asyncio.TimerHandle | None = None
        self.address = address
        if guarded is not None:
            self._look_at_tokens()

    def _look_at_tokens(self) -> None:
        assert self._guarded is not None
        self._guarded.end_refused_streams()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_TOKENS_EVERY, self._look_at_tokens)

    async def stop(self, grace_seconds: float) -> None:
        """Takes no new calls, gives running ones a moment, and closes the port."""
        if self._timer is not None:
            self._timer.cancel()
        await self._server.stop(grace_seconds)


async def serve(
    engine: Engine, host: str, port: int, version: str, tokens: TokenFile | None = None
) -> Server:
    """Starts to serve `engine`.

    Args:
        engine: What to serve.
        host: An address or name; whether it may be reached by others is the caller's to decide.
        port: The port; 0 picks a free one.
        version: Told to clients.
        tokens: If given, every call has to carry one of them.

    Raises:
        OSError: The port cannot be bound.
    """
    server = grpc.aio.server(
        interceptors=() if tokens is None else (AccessCheck(tokens),),
        options=(
            # A frame over this silences a worker's queue for a minute, so it is far above what a
            # handler should ever answer.
            ("grpc.max_receive_message_length", engine.bounds.message_bytes),
            ("grpc.max_send_message_length", -1),
            # Two engines on one port would both seem to listen.
            ("grpc.so_reuseport", 0),
        ),
    )
    service = FlowService(engine, version)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: _unary(engine, name, getattr(service, _snake(name)), request)
        for name, request in SERVED.items()
    }
    methods.update({name: _refusal(name) for name in REFUSED})
    guarded = None if tokens is None else GuardedWorkerTasks(engine, tokens)
    tasks = guarded or WorkerTaskService(engine)
    poll = grpc.stream_stream_rpc_method_handler(
        cast(Any, _stream(tasks)),
        request_deserializer=pb.PollWorkerTaskRequest.FromString,
        response_serializer=_identity,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("dex.FlowService", methods),
            grpc.method_handlers_generic_handler("dex.WorkerTaskService", {"PollWorkerTask": poll}),
        )
    )
    bracketed = f"[{host}]" if ":" in host else host
    if port:
        _check_free(host, port)
    try:
        bound = server.add_insecure_port(f"{bracketed}:{port}")
    except RuntimeError as error:
        raise OSError(f"cannot listen on {bracketed}:{port}: {error}") from None
    if not bound:
        raise OSError(f"cannot listen on {bracketed}:{port}: the port is in use or not allowed")
    await server.start()
    return Server(server, f"{bracketed}:{bound}", guarded)


def _check_free(host: str, port: int) -> None:
    """Says why a port cannot be bound; gRPC itself only logs the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def _identity(payload: bytes) -> bytes:
    return payload


def _snake(name: str) -> str:
    text = name.replace("RPC", "Rpc")
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in text).lstrip("_")


def _unary(
    engine: Engine, name: str, handler: _Handler, request_type: type[Message]
) -> grpc.RpcMethodHandler[Any, Any]:
    is_long_poll = name in LONG_POLLS
    changes = name not in READING
    admission = engine.admission

    async def call(payload: bytes, context: UnaryCall) -> bytes:
        try:
            held = admission.enter_call(len(payload), is_long_poll=is_long_poll, changes=changes)
        except CallError as error:
            await abort_with(context, error)
        # Not when the reply is handed over but when it has been taken.
        context.add_done_callback(lambda _: held.release())
        try:
            request = request_type.FromString(payload)
        except DecodeError:
            await abort_with(context, invalid(f"the request of {name} cannot be decoded"))
        try:
            reply = await handler(request)
            encoded = reply.SerializeToString()
            check_size(f"the reply of {name}", len(encoded), lambda: largest_parts(reply))
            if name in READING:
                admission.check_bytes(len(encoded))
            held.add_bytes(len(encoded))
        except CallError as error:
            await abort_with(context, error)
        except KernelError as error:
            await abort_with(context, from_kernel(error))
        except FrameTooLargeError as error:
            await abort_with(context, CallError(CallErrorKind.WORKER_FAILED, str(error)))
        except StoreFailedError:
            text = "the engine cannot write its data file any more and is stopping"
            await abort_with(context, CallError(CallErrorKind.STOPPING, text))
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            _LOGGER.error("%s failed: %s", name, place_of(error), extra=about(call=name))
            text = f"{name} failed inside the engine; see its log"
            await abort_with(context, CallError(CallErrorKind.INTERNAL, text))
        faults = engine.faults
        if faults.enabled:
            faults.reach(REPLY_BEFORE, name)
            context.add_done_callback(lambda _: faults.reach(REPLY_AFTER, name))
        return encoded

    return grpc.unary_unary_rpc_method_handler(cast(Any, call))


def _stream(tasks: WorkerTaskService) -> Callable[[object, StreamCall], Awaitable[None]]:
    async def call(requests: object, context: StreamCall) -> None:
        try:
            await tasks.poll_worker_task(requests, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except (grpc.aio.InternalError, grpc.aio.UsageError):
            # The worker is gone, so not even a status reaches it.
            raise asyncio.CancelledError from None
        except DecodeError:
            await abort_with(context, invalid("a frame of the stream cannot be decoded"))
        except Exception as error:
            # Passing, as far as the worker is concerned: it opens another stream.
            name = "PollWorkerTask"
            _LOGGER.error("%s failed: %s", name, place_of(error), extra=about(call=name))
            text = "the stream failed inside the engine; see its log"
            await abort_with(context, CallError(CallErrorKind.INTERNAL, text))

    return call


def _refusal(name: str) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(_payload: bytes, context: Abortable) -> bytes:
        text = f"this engine does not serve {name}"
        await abort_with(context, CallError(CallErrorKind.UNIMPLEMENTED, text))

    return grpc.unary_unary_rpc_method_handler(cast(Any, call))
