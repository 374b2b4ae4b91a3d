"""Child processes that a test can kill, pause and look into."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol

from dex_agents.testing._waiting import DEFAULT_TIMEOUT, WaitTimeoutError, wait_until

_OUTPUT_TAIL: Final = 4000


class ChildProcessError(RuntimeError):
    """A child process ended or did not become ready. The message ends with its last output.

    Attributes:
        name: Name of the child.
        returncode: How it ended, or `None` when it still ran.
    """

    def __init__(self, name: str, problem: str, returncode: int | None, output: str) -> None:
        super().__init__(f"{name} {problem}; its output ends with:\n{output or '(nothing)'}")
        self.name = name
        self.returncode = returncode


class StartedProcess(Protocol):
    """What `ChildProcess` needs of a process that was started; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group."""
        ...

    @property
    def stdin(self) -> IO[Any] | None:
        """The end of its standard input, if it is held here."""
        ...

    def poll(self) -> int | None:
        """Return how it ended, or `None` while it runs."""
        ...

    def wait(self) -> int:
        """Wait until it has ended and return how."""
        ...


class StartProcess(Protocol):
    """Starts a program in a process group of its own."""

    def __call__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        cwd: str | Path | None,
        env: Mapping[str, str] | None,
    ) -> StartedProcess:
        """Start the program; its output is added to a file."""
        ...


def start_process(
    command: Sequence[str],
    *,
    log_path: Path,
    cwd: str | Path | None,
    env: Mapping[str, str] | None,
) -> StartedProcess:
    """Start a program as a child of this process."""
    with log_path.open("ab") as log:
        # Standard input stays open as long as this process lives: a child that watches it ends
        # when the test run is killed, although it is in another process group.
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if env is None else dict(env),
            start_new_session=True,
        )


class ChildProcess:
    """A running program in a process group of its own; its output goes to a file.

    Args:
        name: Name for messages.
        command: Program and arguments.
        log_path: File that gets standard output and standard error.
        cwd: Working directory.
        env: The whole environment; that of this process by default.
        start: How it is started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        start: StartProcess = start_process,
    ) -> None:
        self.name = name
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._process = start(command, log_path=log_path, cwd=cwd, env=env)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended, negative for a signal; `None` while it runs."""
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.returncode is None

    def output(self) -> str:
        """Return everything it has printed."""
        try:
            return self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def kill(self) -> None:
        """End the process group with SIGKILL and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._close_stdin()

    def pause(self) -> None:
        """Stop the process group with SIGSTOP: it lives but does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process group go on."""
        self._signal(signal.SIGCONT)

    async def stop(self, timeout: float = 10.0) -> int:
        """Ask the process to end with SIGTERM, kill it when it does not, and return its code."""
        self._signal(signal.SIGTERM)
        self.resume()
        try:
            await self.wait(timeout)
        except WaitTimeoutError:
            self.kill()
        self._close_stdin()
        return self._process.wait()

    async def wait(self, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Wait until the process has ended by itself and return its code.

        Raises:
            WaitTimeoutError: It still runs.
        """
        await wait_until(
            f"the end of {self.name}", lambda: not self.is_running, timeout=timeout, interval=0.02
        )
        return self._process.wait()

    def failure(self, problem: str) -> ChildProcessError:
        """Build an error about this process that shows the end of its output."""
        return ChildProcessError(
            self.name, problem, self.returncode, self.output()[-_OUTPUT_TAIL:].strip()
        )

    def require_running(self) -> None:
        """Raise when the process has ended.

        Raises:
            ChildProcessError: It has ended.
        """
        if not self.is_running:
            raise self.failure(f"ended with code {self.returncode}")

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            # It may end between the question and the signal.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _close_stdin(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
