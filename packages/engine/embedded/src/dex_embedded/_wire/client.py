"""A client of an engine, for the command line."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import grpc
from dex.dexpb import dex_pb2_grpc

_OPTIONS: Final = (("grpc.max_receive_message_length", -1),)


class CallFailedError(Exception):
    """A call to an engine failed; the text is one line for a person."""


@asynccontextmanager
async def connect(server: str) -> AsyncGenerator[Any]:
    """Yields a stub of FlowService; the generated one has no types, hence `Any`.

    Args:
        server: Address of the engine, `host:port`.

    Raises:
        CallFailedError: A call in the block failed.
    """
    try:
        async with grpc.aio.insecure_channel(server, options=_OPTIONS) as channel:
            yield cast(Any, dex_pb2_grpc).FlowServiceStub(channel)
    except grpc.RpcError as error:
        raise CallFailedError(_describe(error)) from error


def _describe(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return f"no engine answers ({error.details()})"
        return error.details() or error.code().name
    return str(error)
