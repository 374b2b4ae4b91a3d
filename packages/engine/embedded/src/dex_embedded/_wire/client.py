"""A client of an engine, for the command line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import grpc
from dex.dexpb import dex_pb2_grpc

from dex_embedded._wire.token_file import read_tokens

_OPTIONS: Final = (("grpc.max_receive_message_length", -1),)


class CallFailedError(Exception):
    """A call to an engine failed; the text is one line for a person."""


@dataclass(frozen=True)
class EngineTarget:
    """An engine to call.

    Attributes:
        address: Its `host:port`.
        token_file: Where its access token is; the first one in the file is sent.
    """

    address: str
    token_file: Path | None = None


@asynccontextmanager
async def connect(target: EngineTarget) -> AsyncGenerator[Any]:
    """Yields a stub of FlowService; the generated one has no types, hence `Any`.

    Raises:
        CallFailedError: A call in the block failed.
        TokenFileError: The token file cannot be used.
    """
    interceptors: list[grpc.aio.ClientInterceptor] = []
    if target.token_file is not None:
        interceptors.append(cast(Any, _WithToken(read_tokens(target.token_file)[0])))
    try:
        async with grpc.aio.insecure_channel(
            target.address, options=_OPTIONS, interceptors=interceptors
        ) as channel:
            yield cast(Any, dex_pb2_grpc).FlowServiceStub(channel)
    except grpc.RpcError as error:
        raise CallFailedError(_describe(error)) from error


def _describe(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return f"no engine answers ({error.details()})"
        return error.details() or error.code().name
    return str(error)


class _WithToken(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Any], Awaitable[Any]],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        details = grpc.aio.ClientCallDetails(
            client_call_details.method,
            client_call_details.timeout,
            grpc.aio.Metadata(("authorization", f"Bearer {self._token}")),
            client_call_details.credentials,
            client_call_details.wait_for_ready,
        )
        return await continuation(details, request)
