"""The two clocks of the engine, behind one seam."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the engine reads time.

    Everything that is stored or sent uses wall time, because it must mean the same after a restart.
    Everything that measures a wait inside one process life uses monotonic time, because wall time
    may jump.
    """

    def wall(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        ...


class SystemClock:
    """The clocks of the machine."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
