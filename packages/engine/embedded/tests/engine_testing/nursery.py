"""Engines that are forked from a process which has loaded their modules already.

Loading takes longer than everything else an engine does until it is ready. A test that restarts one
hundreds of times forks them instead: clients see the short absence that matters, and not a busy
machine. The command runs in the fork just as it is, and it is the fork that is killed.

Run as a program, this module is the process that forks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import runpy
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

READY_WITHIN = 120.0


class Nursery:
    """Starts engines, one at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._pid = 0

    async def start(self, data_dir: Path, *, port: int, env: Mapping[str, str]) -> str:
        """Starts an engine, and returns its address when it is ready.

        Raises:
            RuntimeError: It ended instead; its reason is on stderr.
        """
        args = ["dev", "--data-dir", str(data_dir), "--port", str(port), "--json"]
        line = json.dumps({"env": dict(env), "args": args})
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        ready = await asyncio.wait_for(self._read(), READY_WITHIN)
        if "address" not in ready:
            raise RuntimeError(f"the engine did not start: {ready}")
        self._pid = int(ready["pid"])
        return str(ready["address"])

    async def kill(self) -> None:
        """SIGKILL for the engine, if it lives; waits until it is gone."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            await self.wait_gone(READY_WITHIN)

    async def wait_gone(self, within: float) -> None:
        """Waits until the engine ended by itself.

        Raises:
            TimeoutError: It did not.
        """
        async with asyncio.timeout(within):
            gone = await self._read()
        assert gone == {"gone": self._pid, "signal": signal.SIGKILL}, gone
        self._pid = 0

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(await self._process.stdout.readline())


@asynccontextmanager
async def engine_nursery() -> AsyncGenerator[Nursery]:
    """A nursery, gone when the block ends, and its engine with it."""
    tests = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH", "")]))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "engine_testing.nursery",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        # A group of its own, so that an engine whose start was given up goes with it.
        start_new_session=True,
    )
    nursery = Nursery(process)
    try:
        yield nursery
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _engine(order: Mapping[str, Any]) -> None:
    """The fork: an engine and nothing else."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.environ.update(order["env"])
    args: Sequence[str] = order["args"]
    sys.argv[1:] = args
    runpy.run_module("dex_embedded", run_name="__main__", alter_sys=True)


def _main() -> None:
    import dex_embedded.cli.app
    import dex_embedded.cli.dev

    assert dex_embedded.cli.app
    assert dex_embedded.cli.dev
    for line in _lines():
        child = os.fork()
        if not child:
            try:
                _engine(json.loads(line))
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        print(json.dumps({"gone": child, "signal": killed_by}), flush=True)


def _lines() -> Iterator[bytes]:
    """Lines of input. Its end, however it comes about, is the end of every engine as well."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        # Not through `sys.stdin`, whose lock a fork would inherit as it is.
        rest = b""
        while chunk := os.read(0, 65_536):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                lines.put(line)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield lines.get()


if __name__ == "__main__":
    _main()
