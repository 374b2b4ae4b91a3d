"""Engines that come back on the same data folder and port after they were killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from dex import DexServiceError, FlowResult

from engine_testing.probe import Script
from engine_testing.process import EngineProcess, start_engine
from engine_testing.world import World

T = TypeVar("T")


class Engines:
    """The engines of one test, all on one data folder; gone when the test is over."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._started: list[EngineProcess] = []

    async def start(self, *, fault: str = "", fault_log: Path | None = None) -> EngineProcess:
        """Starts an engine, after the first one always on the same port.

        Args:
            fault: Where it is to die.
            fault_log: A file that names every fault place it comes to.
        """
        port = self._started[0].port if self._started else 0
        env = {"DEX_EMBEDDED_FAULT": fault}
        if fault_log is not None:
            env["DEX_EMBEDDED_FAULT_LOG"] = str(fault_log)
        engine = await start_engine(self._data_dir, port=port, env=env)
        self._started.append(engine)
        return engine

    async def kill_all(self) -> None:
        for engine in self._started:
            await engine.kill()


@asynccontextmanager
async def engines_on(data_dir: Path) -> AsyncGenerator[Engines]:
    """Engines on a folder; none is left when the block ends."""
    engines = Engines(data_dir)
    try:
        yield engines
    finally:
        await engines.kill_all()


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call while the engine is away."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except DexServiceError as error:
                if error.code.name not in ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"):
                    raise
                await asyncio.sleep(0.05)


async def result_of(world: World, script: Script) -> FlowResult:
    """Waits for the end of a flow although the engine may be away meanwhile."""
    return await persist(lambda: world.result(script, seconds=20))
