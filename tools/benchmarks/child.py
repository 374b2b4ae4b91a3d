"""A process of its own for an engine, a worker, or both: `python -m tools.benchmarks.child ROLE`.

Its first line on stdout is one JSON object with the address. Then every line on stdin is answered
by one JSON object with the CPU seconds it has used; the end of stdin ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

from dex import (
    AsyncWorker,
    BlobCacheConfig,
    PullWorkerOptions,
    Registry,
    WorkerOptions,
    open_blob_cache,
)

from dex_agents.local import open_sessions
from dex_embedded import open_engine
from tools.benchmarks.flows import BareFlow, session_flow

CONCURRENT_TASKS = 64


async def run(
    folder: Path, server_address: str | None, synchronous: Literal["FULL", "NORMAL"], serve: bool
) -> None:
    async with AsyncExitStack() as stack:
        address = server_address or ""
        if not address:
            opened = open_engine(folder, synchronous=synchronous)
            address = (await stack.enter_async_context(opened)).address
        if serve:
            sessions = open_sessions(
                session_flow(),
                server_address=address,
                connect=False,
                max_concurrent_tasks=CONCURRENT_TASKS,
            )
            await stack.enter_async_context(sessions)
            cache = open_blob_cache(BlobCacheConfig(str(folder / "blobs"), 16_000_000))
            stack.callback(cache.close)
            worker = AsyncWorker(
                Registry([BareFlow()], allow_async_handlers=True),
                cache,
                WorkerOptions(
                    server_address=address,
                    pull=PullWorkerOptions(max_concurrent_tasks=CONCURRENT_TASKS),
                ),
            )
            serving = asyncio.create_task(worker.start())
            stack.push_async_callback(asyncio.wait, {serving})
            stack.push_async_callback(worker.close)
            await worker.wait_pull_registered()
        print(json.dumps({"address": address}), flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps({"cpu": time.process_time()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["engine", "worker", "application"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--address")
    parser.add_argument("--synchronous", choices=["FULL", "NORMAL"], default="FULL")
    given = parser.parse_args()
    asyncio.run(run(given.folder, given.address, given.synchronous, given.role != "engine"))


if __name__ == "__main__":
    main()
