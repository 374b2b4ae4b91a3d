"""An engine in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from engine_testing.forking import CommandProcess, start_command

READY_WITHIN = 60.0


class EngineProcess:
    """A running `dex-embedded dev`.

    Attributes:
        address: Where it listens.
        pid: Its process id.
    """

    def __init__(self, process: CommandProcess, ready: dict[str, object]) -> None:
        self._process = process
        self.address = str(ready["address"])
        self.pid = int(str(ready["pid"]))

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def terminate(self, within: float = 20.0) -> int:
        """SIGTERM; returns the exit code."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self._process.wait(), within)

    async def wait_gone(self, within: float = 30.0) -> int:
        """Waits until the process ended by itself."""
        return await asyncio.wait_for(self._process.wait(), within)


async def start_engine(
    data_dir: Path,
    *,
    port: int = 0,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    log: list[str] | None = None,
    file_limit: int | None = None,
) -> EngineProcess:
    """Starts an engine and waits until it is ready.

    Args:
        data_dir: Its data folder.
        port: Where it listens; 0 picks a free port.
        env: Added to the environment.
        args: Further arguments of the command.
        log: Gets the lines of its stderr, which go to the test's own without it.
        file_limit: Bytes that a file it writes may have; as if the disk were full then.

    Raises:
        RuntimeError: It ended instead; the text is what it said.
    """
    command = ["dev", "--data-dir", str(data_dir), "--port", str(port), "--json", *args]
    process = await start_command(command, env=env, file_limit=file_limit)
    assert process.stdout is not None
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stdout.readline(), READY_WITHIN)
    if not line:
        problem = (await process.stderr.read()).decode()
        await process.wait()
        raise RuntimeError(f"the engine did not start: {problem}")
    # What it logs must not fill the pipe and block it.
    drain = asyncio.create_task(_copy(process.stderr, log))
    process.stderr = None
    engine = EngineProcess(process, json.loads(line))
    _DRAINS.add(drain)
    drain.add_done_callback(_DRAINS.discard)
    return engine


_DRAINS: set[asyncio.Task[None]] = set()


async def _copy(stream: asyncio.StreamReader, log: list[str] | None) -> None:
    while line := await stream.readline():
        text = line.decode(errors="replace")
        if log is None:
            sys.stderr.write(text)
        else:
            log.append(text)


@asynccontextmanager
async def engine_process(
    data_dir: Path,
    *,
    port: int = 0,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    log: list[str] | None = None,
    file_limit: int | None = None,
) -> AsyncGenerator[EngineProcess]:
    """An engine process that is gone when the block ends."""
    engine = await start_engine(
        data_dir, port=port, env=env, args=args, log=log, file_limit=file_limit
    )
    try:
        yield engine
    finally:
        await engine.kill()
