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
| `handout.after` | that mark is durable; its frame may not have been sent |
| `send.before` | a task frame is about to be written to its stream |
| `send.after` | the frame was handed to the transport |
| `reply.before` | a client call is about to be answered |

`DEX_EMBEDDED_FAULT_LOG` names a file to which every arrival is appended as one line, whether or not
anything is killed: the list of places a run went through.
"""

from __future__ import annotations

import os
import signal
from typing import Final

COMMIT: Final = "commit"
HAND_OUT: Final = "handout"
BEFORE: Final = ".before"
AFTER: Final = ".after"
SEND_BEFORE: Final = "send.before"
SEND_AFTER: Final = "send.after"
REPLY_BEFORE: Final = "reply.before"

PLACES: Final = (
    COMMIT + BEFORE,
    COMMIT + AFTER,
    HAND_OUT + BEFORE,
    HAND_OUT + AFTER,
    SEND_BEFORE,
    SEND_AFTER,
    REPLY_BEFORE,
)


class Faults:
    """Counts arrivals and kills the process at the one that was asked for.

    Args:
        wanted: For each place, with or without a type, the arrival that kills. Empty: never.
        log_path: A file that gets one line an arrival, or `None`.
    """

    def __init__(self, wanted: dict[str, int] | None = None, log_path: str | None = None) -> None:
        self._remaining = dict(wanted or {})
        self._log_path = log_path
        self.enabled = bool(self._remaining or log_path)

    @classmethod
    def from_environment(cls) -> Faults:
        """Reads `DEX_EMBEDDED_FAULT` and `DEX_EMBEDDED_FAULT_LOG`.

        Raises:
            ValueError: The variable is not a list of `place:count` with known places.
        """
        return cls(
            parse_faults(os.environ.get("DEX_EMBEDDED_FAULT", "")),
            os.environ.get("DEX_EMBEDDED_FAULT_LOG") or None,
        )

    def reach(self, place: str, subject: str = "") -> None:
        """Notes an arrival at `place` on behalf of `subject`, and dies if it is the one."""
        if not self.enabled:
            return
        full = f"{place}:{subject}" if subject else place
        if self._log_path is not None:
            with open(self._log_path, "a", encoding="utf-8") as log:
                log.write(full + "\n")
        for name in {place, full}:
            left = self._remaining.get(name)
            if left is None:
                continue
            self._remaining[name] = left - 1
            if left == 1:
                os.kill(os.getpid(), signal.SIGKILL)


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
