"""An event loop in which waiting takes no time, and what an engine does in it while nobody calls.

The loop's clock jumps to the next timer as soon as nothing is ready, so an hour of an idle engine
passes as fast as its timers run. No socket may be in use: what it would bring comes too late.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dex_embedded._runtime.engine import Engine
from dex_embedded._runtime.faults import Faults
from dex_embedded._runtime.resident_runs import RunTable
from dex_embedded._wire import codec


class _Selector(selectors.DefaultSelector):
    """Reports what is ready; instead of waiting it moves the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            ready = super().select(1)  # nothing is planned: a thread has to come back
        elif not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


class _LoopClock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began = time.time()

    def wall(self) -> float:
        return self._began + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()


def work_at_rest(folder: Path, seconds: float) -> Counter[str]:
    """What an engine does with a data folder in so many seconds without a call.

    Call it from a thread without an event loop. What the engine does to get started, before the
    first of those seconds, does not count.

    Returns:
        Statements by connection, decisions about runs, and runs in memory at the end.
    """
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(_observe(folder, seconds, loop))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _observe(folder: Path, seconds: float, loop: asyncio.AbstractEventLoop) -> Counter[str]:
    seen: Counter[str] = Counter()
    engine = Engine.open(folder, codec, clock=_LoopClock(loop), faults=Faults())
    store: Any = engine._store
    runs: RunTable = engine._runs
    apply = runs.apply

    def counted_apply(*args: Any, **options: Any) -> Any:
        seen["decisions"] += 1
        return apply(*args, **options)

    try:
        engine.start()
        await asyncio.sleep(1)
        runs.apply = counted_apply
        for name, connection in (
            ("statements written", store._writer),
            ("statements read", store._reader._connection),
        ):
            connection.set_trace_callback(lambda _, name=name: seen.update([name]))
        await asyncio.sleep(seconds)
        seen["runs in memory"] = len(runs)
    finally:
        await engine.stop(0)
        await engine.close()
    return seen
