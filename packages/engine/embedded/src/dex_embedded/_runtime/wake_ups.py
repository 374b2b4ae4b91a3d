"""Brings every run its `Wake` when it is due, without holding all runs in memory.

The store knows when each parked run wants to be woken. Only what is due within the horizon is kept
here; a look into the store every half horizon brings in the rest. A run that is resident reports
its own changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from dex_embedded._runtime.clock import Clock
from dex_embedded._runtime.timer import CallLater, Timer

HORIZON: Final = 60.0
LONGEST_SLEEP: Final = 5.0
"""The machine may have slept, or its clock may have been set: look at the time again after this."""
BATCH: Final = 200
"""Runs woken, or read from the store, in one turn of the loop."""


class WakeUps:
    """The wake-up times of the near future.

    Args:
        clock: Wall time, in which wake-ups are stored.
        call_later: Runs a function after a delay in seconds.
        due_before: Reads (time, run key) pairs of stored runs, the earliest first.
        wake: Called with the key of a run whose time has come.
    """

    def __init__(
        self,
        clock: Clock,
        call_later: CallLater,
        due_before: Callable[[float, int], list[tuple[float, int]]],
        wake: Callable[[int], None],
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._due_before = due_before
        self._wake = wake
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []
        self._timer: tuple[float, Timer] | None = None
        self._scan_timer: Timer | None = None
        self._closed = False

    def start(self) -> None:
        """Reads what is due soon, overdue wake-ups included."""
        self._scan()

    def close(self) -> None:
        self._closed = True
        for timer in (self._scan_timer, self._timer and self._timer[1]):
            if timer is not None:
                timer.cancel()

    def set(self, run_key: int, due: float | None) -> None:
        """A resident run now wants to be woken at `due`, or not at all."""
        if due is None or due > self._clock.wall() + HORIZON:
            self._due.pop(run_key, None)
        elif self._due.get(run_key) != due:
            self._due[run_key] = due
            heapq.heappush(self._heap, (due, run_key))
            self._arm()

    def _scan(self) -> None:
        if self._closed:
            return
        now = self._clock.wall()
        found = self._due_before(now + HORIZON, BATCH)
        for due, run_key in found:
            # A resident run may know better than its stored row.
            if run_key not in self._due:
                self.set(run_key, due)
        # A full batch may hide more behind it that is just as due.
        delay = HORIZON / 2 if len(found) < BATCH else 0.1
        self._scan_timer = self._call_later(delay, self._scan)
        self._arm()

    def _arm(self) -> None:
        if self._closed or not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._timer[0] <= due:
                return
            self._timer[1].cancel()
        delay = min(max(due - self._clock.wall(), 0.0), LONGEST_SLEEP)
        self._timer = (due, self._call_later(delay, self._fire))

    def _fire(self) -> None:
        self._timer = None
        if self._closed:
            return
        now = self._clock.wall()
        woken = 0
        while self._heap and self._heap[0][0] <= now and woken < BATCH:
            due, run_key = heapq.heappop(self._heap)
            if self._due.get(run_key) != due:
                continue
            del self._due[run_key]
            woken += 1
            self._wake(run_key)
        self._arm()
