"""A client and workers around an engine address, closed in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from dex import (
    AsyncClient,
    AsyncWorker,
    BlobCache,
    BlobCacheConfig,
    ClientOptions,
    Credential,
    Flow,
    FlowResult,
    PullWorkerOptions,
    Registry,
    StartFlowOptions,
    WorkerOptions,
    WorkerTarget,
    open_blob_cache,
)
from dex.dexpb import dex_pb2_grpc

from engine_testing.probe import PROBE, Script


@asynccontextmanager
async def running_worker(
    address: str,
    cache: BlobCache,
    flows: Sequence[Flow[Any]] = (PROBE,),
    *,
    max_tasks: int = 16,
    idle_streams: int = 2,
    reserved_rpcs: int | None = None,
    credential: Credential | None = None,
) -> AsyncGenerator[AsyncWorker]:
    """A pull worker that has registered all its queues."""
    registry = Registry(list(flows), allow_async_handlers=True)
    pull = PullWorkerOptions(
        max_concurrent_tasks=max_tasks,
        idle_streams_per_queue=idle_streams,
        reserved_rpc_tasks=reserved_rpcs,
        stop_drain_timeout=timedelta(seconds=5),
    )
    options = WorkerOptions(server_address=address, pull=pull, credential=credential)
    worker = AsyncWorker(registry, cache, options)
    running = asyncio.create_task(worker.start())
    try:
        registered = asyncio.create_task(worker.wait_pull_registered())
        await asyncio.wait({running, registered}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            registered.cancel()
            await running
        await registered
        yield worker
    finally:
        await worker.stop()
        await running


@dataclass
class World:
    """Everything a conformance test needs.

    Attributes:
        address: The engine.
        client: A client of it.
        stub: The generated stub, for calls the client does not make.
        cache: For further workers.
    """

    address: str
    client: AsyncClient
    stub: Any
    cache: BlobCache

    async def start(self, script: Script, given: str = "", **options: Any) -> str:
        """Starts the scripted flow; returns the run id."""
        return await self.client.start_flow(
            PROBE, script.flow_id, given, StartFlowOptions(**options)
        )

    async def call(self, rpc: Any, flow_id: str, given: str) -> str:
        """Invokes an RPC; the client's own signature knows no asynchronous handlers."""
        return await self.client.invoke_rpc(rpc, flow_id, given)

    async def result(self, script: Script, seconds: int = 30) -> FlowResult:
        return await self.client.wait_for_flow(script.flow_id, timeout=timedelta(seconds=seconds))

    def worker(self, **options: Any) -> AbstractAsyncContextManager[AsyncWorker]:
        """A worker of the scripted flow, for a `with` block."""
        return running_worker(self.address, self.cache, **options)


@asynccontextmanager
async def open_world(
    address: str,
    folder: Path,
    flows: Sequence[Flow[Any]] = (PROBE,),
    credential: Credential | None = None,
) -> AsyncGenerator[World]:
    """A client of the engine at `address`. The stub never carries a credential."""
    async with AsyncExitStack() as stack:
        cache = open_blob_cache(BlobCacheConfig(str(folder / "blobs"), 64_000_000))
        stack.callback(cache.close)
        registry = Registry(list(flows), allow_async_handlers=True)
        client = await stack.enter_async_context(
            AsyncClient(
                registry,
                cache,
                ClientOptions(
                    server_address=address,
                    worker_target=WorkerTarget(pull=True),
                    credential=credential,
                ),
            )
        )
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        yield World(address, client, dex_pb2_grpc.FlowServiceStub(channel), cache)


async def until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    """Waits until `condition` is true, and returns what it gave; it may be a coroutine function.

    Raises:
        AssertionError: It was not within `seconds`.
    """
    ends_at = time.monotonic() + seconds
    while True:
        seen = condition()
        if asyncio.iscoroutine(seen):
            seen = await seen
        if seen:
            return seen
        assert time.monotonic() < ends_at, f"not within {seconds:g} seconds: {what or condition}"
        await asyncio.sleep(0.01)
