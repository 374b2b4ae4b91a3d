"""What the machine needs for the parts of a turn alone: one call, one flush to disk."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

_CALLS = 400
_FLUSHES = 50
_PAYLOAD = b"x" * 1_000


@dataclass(frozen=True)
class Floor:
    """Medians of this machine, now.

    Attributes:
        call_cpu_ms: CPU of one unary gRPC call with 1 kB each way, client and server together.
        call_ms: How long it takes.
        flush_ms: How long 4 kB take to the disk.
    """

    call_cpu_ms: float
    call_ms: float
    flush_ms: float


async def measure_floor(folder: Path) -> Floor:
    """Measures the parts in this process and folder."""

    async def echo(request: bytes, _: object) -> bytes:
        return request

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(cast(Any, echo))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("floor.Floor", {"Echo": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    latencies: list[float] = []
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[Any, Any] = channel.unary_unary(
                "/floor.Floor/Echo"
            )
            for _ in range(_CALLS // 4):
                await call(_PAYLOAD)
            used = time.process_time()
            for _ in range(_CALLS):
                began = time.perf_counter()
                await call(_PAYLOAD)
                latencies.append(time.perf_counter() - began)
            used = time.process_time() - used
    finally:
        await server.stop(None)
    return Floor(used / _CALLS * 1e3, statistics.median(latencies) * 1e3, _flush_ms(folder))


def _flush_ms(folder: Path) -> float:
    seconds: list[float] = []
    with (folder / "flush").open("wb", buffering=0) as file:
        for _ in range(_FLUSHES):
            began = time.perf_counter()
            file.write(b"x" * 4_096)
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3
