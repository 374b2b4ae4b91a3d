"""The frames that wait for a stream's writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum

from dex_embedded._runtime.worker_streams import OutgoingFrame, TaskFrame


class LineEnd(Enum):
    """What the writer of a stream finds behind its last frame."""

    BY_ENGINE = "the engine ends the call"
    BY_WORKER = "the worker has half-closed and discards what it reads"


class Line:
    """Frames waiting for their stream's writer, in order.

    Args:
        bound: How many may wait.
        break_off: Called once when more would wait, or when the engine asks for the end of the call
            a second time: the worker does not read, so the writer never gets that far.
    """

    def __init__(self, bound: int, break_off: Callable[[], None]) -> None:
        self._frames: deque[OutgoingFrame | LineEnd] = deque()
        self._filled = asyncio.Event()
        self._bound = bound
        self._break_off = break_off
        self._is_broken = False
        self._is_closing = False

    def put(self, frame: OutgoingFrame) -> None:
        """Adds a frame at the end."""
        if len(self._frames) >= self._bound:
            self._break()
            return
        self._frames.append(frame)
        self._filled.set()

    def close(self) -> None:
        """Asks the writer to end the call once everything before has been written."""
        if self._is_closing:
            self._break()
            return
        self._is_closing = True
        self._frames.append(LineEnd.BY_ENGINE)
        self._filled.set()

    def abandon(self) -> bool:
        """Asks the writer to return after the frame it is writing; nobody reads the others.

        Returns:
            Whether a task was among the others.
        """
        held_task = any(isinstance(frame, TaskFrame) for frame in self._frames)
        self._frames.clear()
        self._frames.append(LineEnd.BY_WORKER)
        self._filled.set()
        return held_task

    async def take(self) -> OutgoingFrame | LineEnd:
        """The next frame, once there is one."""
        while not self._frames:
            self._filled.clear()
            await self._filled.wait()
        return self._frames.popleft()

    def _break(self) -> None:
        if not self._is_broken:
            self._is_broken = True
            self._break_off()
