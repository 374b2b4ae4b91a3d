"""Asks a running engine which protocol versions it speaks and compares them with ours."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from dex.dexpb import dex_pb2 as pb
from google.protobuf import empty_pb2

from tools.errors import ToolError

# The versions that the supported SDK speaks.
LOWEST, HIGHEST = 1, 3

_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class ServerInfo:
    """What an engine says about itself."""

    version: str
    lowest: int
    current: int

    def problem(self) -> str | None:
        """Return why this engine cannot be used, or None where it can."""
        if not 0 < self.lowest <= self.current:
            return f"engine {self.version} names no valid protocol: {self.lowest}..{self.current}"
        if self.lowest > HIGHEST or self.current < LOWEST:
            older = "an older" if self.lowest > HIGHEST else "a newer"
            return (
                f"engine {self.version} speaks protocol {self.lowest}..{self.current}, the SDK "
                f"{LOWEST}..{HIGHEST}; take {older} engine"
            )
        return None


def ask_server(address: str) -> ServerInfo:
    """Return what the engine at an address says about itself.

    Raises:
        ToolError: it does not answer, or does not know the question.
    """
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/dex.FlowService/GetServerInfo",
            request_serializer=empty_pb2.Empty.SerializeToString,
            response_deserializer=pb.ServerInfo.FromString,
        )
        try:
            found = call(empty_pb2.Empty(), timeout=_TIMEOUT_SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            raise ToolError(f"the engine at {address} did not answer: {error}") from error
    return ServerInfo(
        found.server_version,
        found.minimum_supported_protocol_version,
        found.current_protocol_version,
    )
