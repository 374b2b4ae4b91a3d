"""Files through which tests and worker processes meet.

A worker that is killed leaves its files behind, so what it had reached can still be read.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dex_agents.testing._waiting import DEFAULT_TIMEOUT, wait_until

_GATE_NAME: Final = re.compile(r"[\w.-]+")
_POLL_SECONDS: Final = 0.02


class FileGate:
    """A place in a worker where a test can stop it, look at it and kill it.

    In the worker: `gate.mark_reached()`, then `await gate.wait_for_release()`. In the test:
    `await gate.wait_until_reached()`, then kill the worker or call `gate.release()`.

    Args:
        state_dir: Folder that both processes know; created when missing.
        name: Name of the gate: letters, digits, `_`, `.` and `-`.
    """

    def __init__(self, state_dir: str | Path, name: str) -> None:
        if not _GATE_NAME.fullmatch(name):
            raise ValueError(f"gate name {name!r} may hold letters, digits, '_', '.' and '-' only")
        self.name = name
        self._reached = Path(state_dir) / f"{name}.reached"
        self._released = Path(state_dir) / f"{name}.released"
        self._reached.parent.mkdir(parents=True, exist_ok=True)

    @property
    def is_reached(self) -> bool:
        """Whether any process has come to the gate."""
        return self._reached.exists()

    @property
    def is_released(self) -> bool:
        """Whether the gate is open."""
        return self._released.exists()

    @property
    def arrivals(self) -> tuple[int, ...]:
        """Process ids that came to the gate, in order; a repeated call comes again."""
        try:
            lines = self._reached.read_text(encoding="utf-8").split()
        except FileNotFoundError:
            return ()
        return tuple(int(line) for line in lines)

    def mark_reached(self) -> None:
        """Note that this process has come to the gate."""
        _append_line(self._reached, str(os.getpid()))

    async def wait_for_release(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait until a test opens the gate; return at once when it is open.

        Raises:
            WaitTimeoutError: Nobody opened it in time, so that a forgotten gate ends by itself.
        """
        await wait_until(
            f"the release of gate {self.name!r}",
            lambda: self.is_released,
            timeout=timeout,
            interval=_POLL_SECONDS,
        )

    def block_until_released(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Do the same as `wait_for_release` in a thread, for tools that are plain functions.

        Raises:
            TimeoutError: Nobody opened the gate in time.
        """
        deadline = time.monotonic() + timeout
        while not self.is_released:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"gate {self.name!r} was not released within {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    async def wait_until_reached(self, timeout: float = DEFAULT_TIMEOUT, arrivals: int = 1) -> int:
        """Wait until a process has come to the gate and return its id.

        Args:
            timeout: Seconds until the wait fails.
            arrivals: How many arrivals to wait for; the id of that one is returned.

        Raises:
            WaitTimeoutError: Not enough arrivals in time.
        """
        reached = await wait_until(
            f"arrival {arrivals} at gate {self.name!r}",
            lambda: self.arrivals[arrivals - 1 :],
            timeout=timeout,
            interval=_POLL_SECONDS,
        )
        return reached[0]

    def release(self) -> None:
        """Open the gate for good."""
        self._released.touch()


@dataclass(frozen=True, slots=True)
class Invocation:
    """One recorded call.

    Attributes:
        name: What was called.
        details: Facts the caller recorded.
        process_id: Process that made the call.
        recorded_at: Unix time.
    """

    name: str
    details: Mapping[str, Any]
    process_id: int
    recorded_at: float


class InvocationLog:
    """Counts real calls of tools and models over all worker processes.

    Every call is one line, written in one piece, so parallel processes do not mix and a killed
    process loses nothing it has recorded.

    Args:
        path: The log file; its folder is created when missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def record(self, name: str, **details: object) -> None:
        """Record one call with facts that JSON can hold."""
        line = {"name": name, "details": details, "process_id": os.getpid(), "at": time.time()}
        _append_line(self.path, json.dumps(line))

    def entries(self, name: str | None = None) -> tuple[Invocation, ...]:
        """Return the recorded calls in order, all or those of one name."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        recorded = (
            Invocation(line["name"], line["details"], line["process_id"], line["at"])
            for line in map(json.loads, lines)
        )
        return tuple(entry for entry in recorded if name in (None, entry.name))

    def count(self, name: str | None = None) -> int:
        """Return how many calls were recorded, all or those of one name."""
        return len(self.entries(name))


def _append_line(path: Path, line: str) -> None:
    # One write of a whole line in append mode is not split between processes.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
