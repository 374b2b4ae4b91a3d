"""Lets in only calls that carry an access token: every unary call and every worker stream."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, cast

import grpc

from dex_embedded._runtime.call_errors import CallError, CallErrorKind
from dex_embedded._runtime.engine import Engine
from dex_embedded._runtime.log_fields import about
from dex_embedded._runtime.worker_streams import WorkerStream
from dex_embedded._wire.errors import Abortable, abort_with
from dex_embedded._wire.token_file import TokenFile, TokenFileError
from dex_embedded._wire.worker_tasks import StreamCall, WorkerTaskService

_LOGGER = logging.getLogger(__name__)
_HEADER: Final = "authorization"

Metadata = Sequence[tuple[str, str | bytes]]


class _WithMetadata(Protocol):
    def invocation_metadata(self) -> Metadata | None: ...


class AccessCheck(grpc.aio.ServerInterceptor):
    """Stands before every call, whatever it is, so that none can be forgotten."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        refusal = self._refusal(cast(Metadata, handler_call_details.invocation_metadata))
        if refusal is None:
            return await continuation(handler_call_details)
        _LOGGER.debug("%s: %s", handler_call_details.method, refusal)
        return _refusing(refusal)

    def _refusal(self, metadata: Metadata) -> CallError | None:
        sent = _authorizations(metadata)
        if not sent:
            text = (
                "this engine lets in only calls with an access token, and this one has none;"
                " give the client or worker a credential"
            )
            return CallError(CallErrorKind.UNAUTHENTICATED, text)
        try:
            if len(sent) == 1 and self._tokens.accepts(self._tokens.digest_of(sent[0])):
                return None
        except TokenFileError:
            # Passing, unlike a wrong token, so callers must not give up: a file is being replaced.
            text = "the engine cannot read its access tokens at the moment; see its log"
            return CallError(CallErrorKind.STOPPING, text)
        text = (
            "the access token of this call is not one this engine accepts; give the client or"
            " worker a token that is in the engine's token file"
        )
        return CallError(CallErrorKind.UNAUTHENTICATED, text)


class GuardedWorkerTasks(WorkerTaskService):
    """Ends streams whose token is no longer accepted."""

    def __init__(self, engine: Engine, tokens: TokenFile) -> None:
        super().__init__(engine)
        self._tokens = tokens
        self._digests: dict[WorkerStream, bytes] = {}

    async def _receive_until_end(self, stream: WorkerStream, context: StreamCall) -> None:
        metadata = cast(_WithMetadata, context).invocation_metadata()
        self._digests[stream] = self._tokens.digest_of(_authorizations(metadata or ())[0])
        try:
            await super()._receive_until_end(stream, context)
        finally:
            del self._digests[stream]

    def end_refused_streams(self) -> None:
        """Gives no more tasks to streams that would not be let in any more, and ends them.

        A task in a worker's hands was handed out while its token was good, and ending the stream
        would lose it; so a stream that carries one ends when it is answered.
        """
        for stream, digest in list(self._digests.items()):
            try:
                accepted = self._tokens.accepts(digest)
            except TokenFileError:
                return  # nothing new is let in; what is open stays until the file can be read
            if not accepted and not stream.is_leaving:
                worker = stream.worker.worker_id
                _LOGGER.info(
                    "worker %s: its token is no longer accepted", worker, extra=about(worker=worker)
                )
                self._engine.workers.end_stream(stream)


def _authorizations(metadata: Metadata) -> list[str]:
    return [
        value if isinstance(value, str) else value.decode("ascii", "replace")
        for key, value in metadata
        if key == _HEADER
    ]


def _refusing(error: CallError) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(_requests: object, context: Abortable) -> None:
        await abort_with(context, error)

    # For a unary call too: a handler of streams is entered before any message is read, so a caller
    # without a token cannot make the engine hold a large one.
    return grpc.stream_stream_rpc_method_handler(cast(Any, call))
