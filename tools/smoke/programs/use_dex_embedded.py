"""Runs one Flow on the embedded engine with the unmodified SDK, and asks the command for help."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from dex import (
    AsyncClient,
    AsyncContext,
    AsyncWorker,
    BlobCacheConfig,
    ClientOptions,
    Flow,
    PullWorkerOptions,
    Registry,
    Step,
    StepDecision,
    StepList,
    WorkerOptions,
    WorkerTarget,
    graceful_complete,
    open_blob_cache,
)

from dex_embedded import open_engine


class Greet(Step[str]):
    """Greets whoever is named."""

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:  # type: ignore[override]
        return graceful_complete(f"Hello, {input}")


class Greeting(Flow[str]):
    """A Flow of one Step."""

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Greet())  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - the SDK leaves the Step's type open


async def main() -> None:
    """Start the engine in a folder, a worker, a flow; read its result."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(open_engine("data"))
        flow = Greeting()
        registry = Registry([flow], allow_async_handlers=True)
        cache = open_blob_cache(BlobCacheConfig("blobs", 64_000_000))
        stack.callback(cache.close)
        pull = PullWorkerOptions(max_concurrent_tasks=4, stop_drain_timeout=timedelta(seconds=5))
        options = WorkerOptions(server_address=engine.address, pull=pull)
        worker = AsyncWorker(registry, cache, options)
        running = asyncio.create_task(worker.start())
        target = ClientOptions(server_address=engine.address, worker_target=WorkerTarget(pull=True))
        try:
            await worker.wait_pull_registered()
            async with AsyncClient(registry, cache, target) as client:
                await client.start_flow(flow, "flow-1", "smoke")
                result = await client.wait_for_flow("flow-1", timeout=timedelta(seconds=60))
                assert result.single_output(str) == "Hello, smoke", result.status
        finally:
            await worker.stop()
            await running


asyncio.run(main())
command = Path(sys.executable).with_name("dex-embedded")
shown = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
assert "dev" in shown.stdout
print("a Flow completed")
