"""Time that a test moves by hand."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class FakeTimer:
    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeTime:
    """Both clocks and the timers; nothing happens until `advance`."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def call_later(self, delay: float, function: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(function)
        heapq.heappush(self._timers, (self.now + delay, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Moves on, running what comes due on the way."""
        ends_at = self.now + seconds
        while self._timers and self._timers[0][0] <= ends_at:
            due, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, due)
            if not timer.cancelled:
                timer.function()
        self.now = ends_at
