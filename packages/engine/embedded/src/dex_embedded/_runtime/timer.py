"""The seam behind which the engine arms timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias


class Timer(Protocol):
    """A function that will run later unless it is cancelled."""

    def cancel(self) -> None: ...


CallLater: TypeAlias = Callable[[float, Callable[[], None]], Timer]
"""Runs a function on the loop after a delay in seconds."""
