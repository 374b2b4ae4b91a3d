"""Which processes a measurement needs, started and stopped."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tools.workspace import REPOSITORY_ROOT

Where = Literal["apart", "inside"]
"""Whether engine and worker are processes of their own, or one process together."""
Synchronous = Literal["FULL", "NORMAL"]

_START_SECONDS = 120
_STOP_SECONDS = 60


class Child:
    """One process that says how much CPU it has used."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.address = ""

    async def line(self) -> dict[str, object]:
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            return json.loads(await self._process.stdout.readline())

    async def cpu(self) -> float:
        """CPU seconds so far, of all its threads."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"cpu\n")
        found = (await self.line())["cpu"]
        assert isinstance(found, float)
        return found

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def child(
    role: str, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tools.benchmarks.child",
        role,
        "--folder",
        str(folder),
        *arguments,
        cwd=REPOSITORY_ROOT,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    started = Child(process)
    try:
        started.address = str((await started.line())["address"])
        yield started
    finally:
        await started.stop()


@dataclass
class Layout:
    """Running processes.

    Attributes:
        address: Of the engine.
        children: By what they are.
    """

    address: str
    children: dict[str, Child] = field(default_factory=dict[str, Child])

    async def cpu(self) -> dict[str, float]:
        """CPU seconds by process, that of the measuring client included."""
        found = {name: await child.cpu() for name, child in self.children.items()}
        found["client"] = time.process_time()
        return found


@asynccontextmanager
async def running(
    where: Where,
    synchronous: Synchronous,
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> AsyncGenerator[Layout]:
    """Starts an engine with an empty data folder, and a worker of both Flows.

    Args:
        where: Which processes there are.
        synchronous: Setting of the engine.
        folder: An empty folder.
        environment: Of the engine's process; this one's by default.
    """
    options = ("--synchronous", synchronous)
    async with AsyncExitStack() as stack:
        if where == "inside":
            both = child("application", folder, *options, environment=environment)
            application = await stack.enter_async_context(both)
            yield Layout(application.address, {"engine and worker": application})
        else:
            started = child("engine", folder, *options, environment=environment)
            engine = await stack.enter_async_context(started)
            serving = child("worker", folder, "--address", engine.address)
            worker = await stack.enter_async_context(serving)
            yield Layout(engine.address, {"engine": engine, "worker": worker})
