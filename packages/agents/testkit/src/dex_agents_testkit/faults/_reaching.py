"""The worker's side of fault injection: noting places, and dying or stopping at one.

A test arms a fault by writing a file. The process that is due renames it, so it strikes once, and
sends itself the signal. Without the environment of a crashable agent all of this does nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from dex_agents.testing import InvocationLog

FLOW_VARIABLE: Final = "DEX_AGENTS_FLOW"
FAULT_FILE_VARIABLE: Final = "DEX_AGENTS_FAULT_FILE"
PLACE_LOG_VARIABLE: Final = "DEX_AGENTS_PLACE_LOG"
#: Names the file descriptor that becomes the standard input of every fork: it ends with the test.
LIFELINE_VARIABLE: Final = "DEX_AGENTS_LIFELINE"
DUE_SUFFIX: Final = ".due"
_STOP: Final = ":stop"


@dataclass(frozen=True, slots=True)
class ArmedFault:
    """What a fault file says; the engine reads the same form.

    Attributes:
        place: Full name of the place, with or without a subject.
        occurrence: Which arrival counts, from 1.
        stops: SIGSTOP instead of SIGKILL.
    """

    place: str
    occurrence: int = 1
    stops: bool = False

    def dump(self) -> str:
        return f"{self.place}:{self.occurrence}{_STOP if self.stops else ''}"

    @classmethod
    def load(cls, text: str) -> ArmedFault:
        place, _, count = text.removesuffix(_STOP).rpartition(":")
        return cls(place, int(count), text.endswith(_STOP))


class FaultFile:
    """The file that arms one fault at a time in a process.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._due = path.with_name(path.name + DUE_SUFFIX)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def is_armed(self) -> bool:
        """Whether a fault waits for its place."""
        return self._path.exists()

    @property
    def is_due(self) -> bool:
        """Whether a process has come to the place and sends itself the signal."""
        return self._due.exists()

    def arm(self, fault: ArmedFault) -> None:
        """Let the fault count from now on."""
        self._due.unlink(missing_ok=True)
        draft = self._path.with_name(self._path.name + ".draft")
        draft.write_text(fault.dump(), encoding="utf-8")
        draft.replace(self._path)

    def disarm(self) -> bool:
        """Take the fault back; return whether it was still waiting."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True

    def claim(self) -> bool:
        """Make this process the one that is struck; false where another one was first."""
        try:
            self._path.replace(self._due)
        except FileNotFoundError:
            return False
        with self._due.open("a", encoding="utf-8") as file:
            file.write(f"\n{os.getpid()}\n")
        return True

    def claimant(self) -> int | None:
        """Return the process that claimed the fault; `None` until it has said so."""
        try:
            _, _, told = self._due.read_text(encoding="utf-8").partition("\n")
        except FileNotFoundError:
            return None
        return int(told) if told.endswith("\n") else None


class PlaceRecorder:
    """Notes every place a worker reaches, and strikes at the armed one. Safe to use from threads.

    Args:
        log: Gets one entry per arrival.
        fault_file: Says where to strike.
    """

    def __init__(self, log: InvocationLog, fault_file: FaultFile) -> None:
        self._log = log
        self._file = fault_file
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._armed = ArmedFault("")
        self._left = 0

    def reach(self, place: str, subject: str = "", **details: object) -> None:
        """Note an arrival, and do not return if it is the one."""
        full = f"{place}:{subject}" if subject else place
        self._log.record(full, **details)
        with self._lock:
            is_due = self._is_due(place, full)
        if is_due and self._file.claim():
            os.kill(os.getpid(), signal.SIGSTOP if self._armed.stops else signal.SIGKILL)

    def _is_due(self, place: str, full: str) -> bool:
        try:
            found = self._file.path.stat()
            if self._seen != (found.st_ino, found.st_mtime_ns):
                self._armed = ArmedFault.load(self._file.path.read_text(encoding="utf-8"))
                self._seen = (found.st_ino, found.st_mtime_ns)
                self._left = self._armed.occurrence
        except FileNotFoundError:
            return False
        if self._armed.place not in (place, full):
            return False
        self._left -= 1
        return self._left == 0


@cache
def recorder() -> PlaceRecorder | None:
    """Return the recorder of this process, or `None` where no test watches it."""
    fault_file = os.environ.get(FAULT_FILE_VARIABLE)
    log = os.environ.get(PLACE_LOG_VARIABLE)
    if not fault_file or not log:
        return None
    return PlaceRecorder(InvocationLog(log), FaultFile(Path(fault_file)))


def reach_place(name: str) -> None:
    """Mark a place of your own, for example between the two halves of a tool's effect.

    Does nothing outside a worker of a `CrashableAgent`.

    Args:
        name: Letters, digits, `_` and `-`.
    """
    here = recorder()
    if here is not None:
        here.reach(name)
