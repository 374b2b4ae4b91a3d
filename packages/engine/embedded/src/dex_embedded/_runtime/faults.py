"""Named places where a test can have the engine process killed.

Off unless the environment asks for it. `DEX_EMBEDDED_FAULT=place:count` makes the process kill
itself with SIGKILL at the `count`-th arrival at `place`, so a crash in a test is a real one and
happens at the same place every time. Several are separated by commas; the first that is due kills.

A place is a bare name (`commit.before`) or a name with the Step type or RPC it concerns
(`commit.after:CallTool`). A bare name in the variable counts every arrival at that name; one with a
type counts only those.

| place | when |
|---|---|
| `commit.before` | a transition is decided and about to be made durable |
| `commit.after` | it is durable, nothing has been answered or sent yet |
| `handout.before` | an offered attempt is about to be marked as handed out |
| `handout.after` | that mark is durable, if it has to be; its frame may not have been sent |
| `send.before` | a task frame is about to be written to its stream |
| `send.after` | the frame was handed to the transport |
| `control.before` | a frame without a task (its kind is the subject) is about to be written |
| `control.after` | that frame was handed to the transport |
| `stream.before` | a stream message is about to be made durable (its stream is the subject) |
| `stream.after` | it is durable, nothing has been told yet |
| `disk.before` | the commit thread is about to run COMMIT, for all that waits at that moment |
| `disk.after` | COMMIT has returned, and the loop does not know yet |
| `reply.before` | a client call is about to be answered |
| `reply.after` | the transport is done with that answer |

`DEX_EMBEDDED_FAULT_LOG` names a file to which every arrival is appended as one line, whether or not
anything is killed: place and subject, the tasks that workers have in their hands, and `killed` if
it was the last arrival.

`DEX_EMBEDDED_FAULT_FILE` names a file that a test may write while the engine runs. It holds one
fault, `place:count`, or `place:count:stop` for SIGSTOP instead of SIGKILL; arrivals count from then
on. When the fault is due the file is renamed to end with `.due`, so that it strikes once, and the
signal follows.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dex_embedded._store.group_commit import DISK_AFTER, DISK_BEFORE

COMMIT: Final = "commit"
HAND_OUT: Final = "handout"
BEFORE: Final = ".before"
AFTER: Final = ".after"
SEND_BEFORE: Final = "send.before"
SEND_AFTER: Final = "send.after"
CONTROL_BEFORE: Final = "control.before"
CONTROL_AFTER: Final = "control.after"
STREAM_BEFORE: Final = "stream.before"
STREAM_AFTER: Final = "stream.after"
REPLY_BEFORE: Final = "reply.before"
REPLY_AFTER: Final = "reply.after"

PLACES: Final = (
    COMMIT + BEFORE,
    COMMIT + AFTER,
    HAND_OUT + BEFORE,
    HAND_OUT + AFTER,
    SEND_BEFORE,
    SEND_AFTER,
    CONTROL_BEFORE,
    CONTROL_AFTER,
    STREAM_BEFORE,
    STREAM_AFTER,
    DISK_BEFORE,
    DISK_AFTER,
    REPLY_BEFORE,
    REPLY_AFTER,
)


class Faults:
    """Counts arrivals and kills the process at the one that was asked for.

    Args:
        wanted: For each place, with or without a type, the arrival that kills. Empty: never.
        log_path: A file that gets one line an arrival, or `None`.
        fault_path: A file that may name a fault later on, or `None`.

    Attributes:
        enabled: Whether arrivals are counted or logged at all.
        tasks_out: Tells how many tasks workers have in their hands; the engine sets it.
    """

    def __init__(
        self,
        wanted: dict[str, int] | None = None,
        log_path: str | None = None,
        fault_path: str | None = None,
    ) -> None:
        self._remaining = dict(wanted or {})
        self._log_path = log_path
        self._file = None if fault_path is None else _FaultFile(Path(fault_path))
        self.enabled = bool(self._remaining or log_path or fault_path)
        self.tasks_out: Callable[[], int] = lambda: 0

    @classmethod
    def from_environment(cls) -> Faults:
        """Reads the three variables.

        Raises:
            ValueError: `DEX_EMBEDDED_FAULT` is not a list of `place:count` with known places.
        """
        return cls(
            parse_faults(os.environ.get("DEX_EMBEDDED_FAULT", "")),
            os.environ.get("DEX_EMBEDDED_FAULT_LOG") or None,
            os.environ.get("DEX_EMBEDDED_FAULT_FILE") or None,
        )

    def reach(self, place: str, subject: str = "") -> None:
        """Notes an arrival at `place` on behalf of `subject`, and dies if it is the one."""
        if not self.enabled:
            return
        full = f"{place}:{subject}" if subject else place
        is_last = False
        for name in {place, full}:
            left = self._remaining.get(name)
            if left is not None:
                self._remaining[name] = left - 1
                is_last |= left == 1
        if self._log_path is not None:
            line = f"{full} {self.tasks_out()}{' killed' if is_last else ''}\n"
            # Two threads come here, and a line has to be on its way before the process is gone.
            log = os.open(self._log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(log, line.encode())
            finally:
                os.close(log)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._file is not None:
            self._file.reach(place, full)


class _FaultFile:
    """The one fault that a file names, counted from when the file was written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._place = ""
        self._left = 0
        self._signal = signal.SIGKILL

    def reach(self, place: str, full: str) -> None:
        try:
            with self._lock:
                found = self._path.stat()
                if self._seen != (found.st_ino, found.st_mtime_ns):
                    self._read()
                    self._seen = (found.st_ino, found.st_mtime_ns)
                if self._place not in (place, full):
                    return
                self._left -= 1
                if self._left != 0:
                    return
                self._path.replace(f"{self._path}.due")
        except FileNotFoundError:
            # The test has taken the fault back.
            return
        os.kill(os.getpid(), self._signal)

    def _read(self) -> None:
        text = self._path.read_text(encoding="utf-8").strip()
        self._signal = signal.SIGSTOP if text.endswith(":stop") else signal.SIGKILL
        ((self._place, self._left),) = parse_faults(text.removesuffix(":stop")).items()


def parse_faults(text: str) -> dict[str, int]:
    """Reads the form of `DEX_EMBEDDED_FAULT`.

    Raises:
        ValueError: An entry has no count, a count below 1, or an unknown place.
    """
    wanted: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        place, _, count = entry.rpartition(":")
        if not place or not count.isdigit() or int(count) < 1:
            raise ValueError(f"fault {entry!r} is not of the form place:count")
        if place.split(":", 1)[0] not in PLACES:
            raise ValueError(f"fault {entry!r} names no known place; known are {', '.join(PLACES)}")
        wanted[place] = int(count)
    return wanted
