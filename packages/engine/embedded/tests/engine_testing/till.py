"""A flow that takes money, and a worker process for it that can be killed anywhere.

`Fetch` may be repeated, `Charge` must not be: it appends one line to a file, which is the effect
whose count a test checks. Both stop at a gate: they write a `<Step>.reached` file and go on when a
`<Step>.open` file exists, so a test kills the process at a known place.

Run as a program, this module is that worker: `python -m engine_testing.till ADDRESS FOLDER`.
"""

# The SDK takes asynchronous handlers; its base class is typed for synchronous ones.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from dex import (
    AsyncContext,
    BlobCacheConfig,
    Flow,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    go_to,
    graceful_complete,
    open_blob_cache,
)

from engine_testing.world import running_worker, until


async def _gate(folder: Path, step: str) -> None:
    (folder / f"{step}.reached").write_text(str(os.getpid()))
    await until(lambda: (folder / f"{step}.open").exists(), seconds=120)


def reached(folder: Path, step: str, pid: int) -> bool:
    """Whether the worker with this process id stands at the gate of a Step."""
    marker = folder / f"{step}.reached"
    return marker.exists() and marker.read_text() == str(pid)


class Fetch(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(timedelta(seconds=1), maximum_attempts=4))

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await _gate(Path(input), "Fetch")
        return go_to(Charge, input)


class Charge(Step[str]):
    def get_step_options(self) -> StepOptions:
        once = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))
        return once.on_execute_failure_proceed_to(Unknown)

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        with (Path(input) / "charges").open("a") as charges:
            charges.write(f"{context.flow_id}\n")
        await _gate(Path(input), "Charge")
        return graceful_complete("charged")


class Unknown(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return graceful_complete("outcome unknown")


class Till(Flow[str]):
    def get_steps(self) -> StepList[str]:
        others: list[Step[Any]] = [Charge(), Unknown()]
        return StepList.start_step(Fetch()).other_steps(*others)


TILL = Till()


class WorkerProcess:
    """A worker of the flow in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def worker_process(address: str, folder: Path) -> AsyncGenerator[WorkerProcess]:
    """A worker process that is ready, and gone when the block ends."""
    tests = str(Path(__file__).parent.parent)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "engine_testing.till",
        address,
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": tests},
    )
    worker = WorkerProcess(process)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        assert line == b"ready\n"
        yield worker
    finally:
        await worker.kill()


async def _main(address: str, folder: Path) -> None:
    cache = open_blob_cache(BlobCacheConfig(str(folder / f"blobs-{os.getpid()}"), 64_000_000))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with running_worker(address, cache, [TILL]):
        print("ready", flush=True)
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
