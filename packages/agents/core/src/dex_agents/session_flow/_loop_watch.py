"""Which call keeps the event loop of a worker from running.

A blocked loop cannot tell about itself, and afterwards nobody knows what has blocked it. So a
thread asks the loop for a sign of life while calls are running, and when none comes it looks at
what the loop is busy with. The log gets names and places in the code, never values.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any, Final

#: Seconds without a sign of life after which a loop counts as blocked.
LATE_SECONDS: Final = 5.0
#: Seconds between two questions to a loop that answers.
TICK_SECONDS: Final = 1.0
#: Questions without any running call after which the thread ends.
_IDLE_TICKS: Final = 3
#: Frames of the blocking code that the log shows, the innermost first.
_SHOWN_FRAMES: Final = 4
#: Running calls that are named when it is not known which of them blocks.
_NAMED_CALLS: Final = 5

_LOG = logging.getLogger("dex_agents")
#: The call that a task works for; tasks that a tool starts inherit it.
_CALL: ContextVar[str | None] = ContextVar("dex_agents_running_call", default=None)


class LoopWatch:
    """Names in the log the model or tool call that blocks the event loop it runs on.

    Args:
        late: Seconds without a sign of life after which a loop counts as blocked.
        tick: Seconds between two questions.
    """

    def __init__(self, late: float = LATE_SECONDS, tick: float = TICK_SECONDS) -> None:
        self._late = late
        self._tick = tick
        self._lock = threading.Lock()
        self._running: dict[asyncio.Task[Any], str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def running(self, what: str) -> Generator[None]:
        """Watch the loop of this task until the block ends.

        Args:
            what: What runs, for the log.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call is watched from inside of a task")
        with self._lock:
            self._running[task] = what
            self._start_thread(task.get_loop())
        token = _CALL.set(what)
        try:
            yield
        finally:
            _CALL.reset(token)
            with self._lock:
                self._running.pop(task, None)

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            return
        self._loop = loop
        # A daemon: it waits for a loop that may never answer, and must not keep the process alive.
        threading.Thread(
            target=self._watch,
            args=(loop, threading.get_ident()),
            name="dex-agents loop watch",
            daemon=True,
        ).start()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        idle = 0
        while self._ask(loop, thread_id):
            time.sleep(self._tick)
            with self._lock:
                idle = 0 if self._running else idle + 1
                if self._loop is not loop:
                    return
                if idle >= _IDLE_TICKS:
                    self._loop = None
                    return
        with self._lock:
            if self._loop is loop:
                self._loop = None

    def _ask(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> bool:
        """Ask for a sign of life, and tell when it is late; `False` once the loop is closed."""
        alive = threading.Event()
        asked_at = time.monotonic()
        try:
            loop.call_soon_threadsafe(alive.set)
        except RuntimeError:
            return False
        if alive.wait(self._late):
            return True
        who, where = self._look(loop, thread_id)
        _LOG.warning(
            "the event loop has been blocked for %.0f s by %s, at %s; nothing on this worker gives "
            "a sign of life meanwhile, so run blocking code in a thread",
            time.monotonic() - asked_at,
            who,
            where,
        )
        while not alive.wait(self._tick):
            if loop.is_closed():
                return False
        _LOG.warning(
            "the event loop runs again after %.0f s in which %s blocked it",
            time.monotonic() - asked_at,
            who,
        )
        return True

    def _look(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> tuple[str, str]:
        """Return which call blocks the loop, and where it is in the code."""
        while True:
            task = asyncio.current_task(loop)
            who, where = self._blocking_call(loop), _blocking_code(thread_id)
            # The loop may go on at any moment, and the two would be of different tasks.
            if asyncio.current_task(loop) is task:
                return who, where

    def _blocking_call(self, loop: asyncio.AbstractEventLoop) -> str:
        task: asyncio.Task[Any] | None = asyncio.current_task(loop)
        with self._lock:
            running = dict(self._running)
        if task is not None:
            if task in running:
                return running[task]
            # Python 3.11 cannot tell for which call a task works that a tool has started.
            get_context = getattr(task, "get_context", None)
            if get_context is not None:
                context: Context = get_context()
                return context.get(_CALL) or "something else than a model or tool call"
        named = list(running.values())[:_NAMED_CALLS]
        if len(named) == 1 and len(running) == 1:
            return f"something that runs next to {named[0]}, or by that itself"
        more = f" and {len(running) - len(named)} more" if len(running) > len(named) else ""
        return f"one of {', '.join(named) or 'no known calls'}{more}"


def _blocking_code(thread_id: int) -> str:
    """Return where a thread is in its code: functions, files and lines, without any value."""
    frame = sys._current_frames().get(thread_id)  # pyright: ignore[reportPrivateUsage] - the documented way to look at another thread
    if frame is None:
        return "a place that is not known"
    stack = traceback.StackSummary.extract(
        traceback.walk_stack(frame), limit=_SHOWN_FRAMES, lookup_lines=False
    )
    return ", called by ".join(f"{entry.name} ({entry.filename}:{entry.lineno})" for entry in stack)
