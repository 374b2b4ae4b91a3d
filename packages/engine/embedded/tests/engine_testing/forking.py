"""Commands of the engine that are forked from a process which has loaded their modules already.

Loading takes longer than everything else an engine does until it is ready, and the tests start
engines hundreds of times. The command runs in the fork just as it is: it is a process of its own,
ends as one does, and is what a test kills. Where `fork` is not safe (all but Linux) each command is
a new process.

Run as a program, this module is the process that forks. Each start is a connection to its socket:
the request comes with the ends of two pipes, and the process id and the way it ended go back.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

_MODULE = "dex_embedded"
_LONGEST_REQUEST = 1 << 20


class CommandProcess(Protocol):
    """A command that was started; a process of asyncio has all of this."""

    stdout: asyncio.StreamReader | None
    stderr: asyncio.StreamReader | None

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: int) -> None: ...

    def kill(self) -> None: ...


async def start_command(
    args: Sequence[str], *, env: Mapping[str, str] | None = None, file_limit: int | None = None
) -> CommandProcess:
    """Starts `python -m dex_embedded` with these arguments.

    Args:
        args: The arguments.
        env: Added to the environment.
        file_limit: Bytes that a file it writes may have.
    """
    everything = {**os.environ, **(env or {})}
    if sys.platform == "linux":
        request = {"args": list(args), "env": everything, "file_limit": file_limit}
        return await _fork(request)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _MODULE,
        *args,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=everything,
        preexec_fn=None if file_limit is None else lambda: _limit_files(file_limit),
    )


class _Fork:
    """See `CommandProcess`."""

    def __init__(self, pid: int, ended: asyncio.Future[int]) -> None:
        self.pid = pid
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._ended = ended

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, signal: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Nursery:
    """The process that forks; it goes with this one, and its forks with it."""

    def __init__(self) -> None:
        self.socket = Path(tempfile.mkdtemp(prefix="dex-nursery-")) / "socket"
        tests = str(Path(__file__).parent.parent)
        path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine_testing.forking", str(self.socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            # A group of its own, so that forks which a test has left go with it.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        atexit.register(self._close)

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self.socket.parent)


_nursery: _Nursery | None = None
_one_at_a_time = threading.Lock()


def _the_nursery() -> _Nursery:
    global _nursery
    with _one_at_a_time:
        if _nursery is None:
            _nursery = _Nursery()
        return _nursery


async def _fork(request: Mapping[str, Any]) -> CommandProcess:
    nursery = await asyncio.to_thread(_the_nursery)
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST_REQUEST)
    connection.setblocking(False)
    await loop.sock_connect(connection, str(nursery.socket))
    pipes = [os.pipe(), os.pipe()]
    socket.send_fds(connection, [json.dumps(request).encode()], [end for _, end in pipes])
    for _, end in pipes:
        os.close(end)
    pid = int(await loop.sock_recv(connection, 64))

    async def ended() -> int:
        try:
            return int(await loop.sock_recv(connection, 64))
        finally:
            connection.close()

    process = _Fork(pid, asyncio.ensure_future(ended()))
    process.stdout, process.stderr = [await _reader(start) for start, _ in pipes]
    return process


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


def _limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _main(path: str) -> None:
    import dex_embedded.cli.app
    import dex_embedded.cli.dev

    assert dex_embedded.cli.app
    assert dex_embedded.cli.dev
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(16)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, _wake)
    print("ready", flush=True)
    forks: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([0, wake_read, listener], [], [])
        if 0 in readable:
            os.killpg(0, signal.SIGKILL)
        if wake_read in readable:
            os.read(wake_read, 4096)
            _reap(forks)
        if listener in readable:
            connection, _ = listener.accept()
            request, descriptors, _, _ = socket.recv_fds(connection, _LONGEST_REQUEST, 2)
            pid = os.fork()
            if pid == 0:
                for each in (listener, connection, *forks.values()):
                    # Or it would close a file of the command that got the same number.
                    each.detach()
                _become(json.loads(request), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            forks[pid] = connection
            connection.send(str(pid).encode())


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: it is enough that the signal is not ignored, so that the pipe tells of it."""


def _reap(forks: dict[int, socket.socket]) -> None:
    while forks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        connection = forks.pop(pid)
        # Whoever started it may be gone.
        with contextlib.suppress(OSError):
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        connection.close()


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Be the command and nothing else; the interpreter ends as that of a command does."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, descriptor in enumerate([nothing, *descriptors]):
        os.dup2(descriptor, target)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(request["env"])
    if request["file_limit"] is not None:
        _limit_files(request["file_limit"])
    sys.argv = [_MODULE, *request["args"]]
    runpy.run_module(_MODULE, run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    _main(sys.argv[1])
