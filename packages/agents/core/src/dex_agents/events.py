"""Live events of a running turn, written from any thread.

The writer buffers under a lock and hands batches to the event loop of the Step. Streamed text is
collected for a short time, because one Stream message per token costs far more than it tells.
Events are best effort: what matters is stored with the session.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

from dex_agents.values import AgentEvent, AgentEventType

#: Seconds that streamed text is collected before it becomes one event.
DELTA_INTERVAL: Final = 0.075
#: Characters of text in one event at most; servers limit one Stream message to about 100 kB.
MAX_DELTA_CHARACTERS: Final = 16 * 1024

_LOG = logging.getLogger(__name__)


class AgentEventWriter:
    """Writes the events of one attempt of one Step.

    All `write_*` methods may be called from any thread. They return at once, never raise because
    of the Stream, and do nothing after the Step has ended.

    Args:
        write: Puts one event on the Stream. Called on the event loop only.
        turn_id: Turn the events belong to.
        step_execution_id: Step that writes them.
        attempt: Attempt of that Step, from 1.
        loop: Event loop of the Step; the running one by default.
        delta_interval: Seconds that streamed text is collected.
    """

    def __init__(
        self,
        write: Callable[[AgentEvent], None],
        *,
        turn_id: str,
        step_execution_id: str,
        attempt: int,
        loop: asyncio.AbstractEventLoop | None = None,
        delta_interval: float = DELTA_INTERVAL,
    ) -> None:
        self._write = write
        self._turn_id = turn_id
        self._step_execution_id = step_execution_id
        self._attempt = attempt
        self._loop = loop or asyncio.get_running_loop()
        self._delta_interval = delta_interval
        self._lock = threading.Lock()
        self._pending: list[AgentEvent] = []
        self._delta_type: AgentEventType | None = None
        self._delta: list[str] = []
        self._delta_length = 0
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def write_text_delta(self, text: str) -> None:
        """Add streamed answer text."""
        self._add_delta(AgentEventType.TEXT_DELTA, text)

    def write_reasoning_delta(self, text: str) -> None:
        """Add streamed reasoning text."""
        self._add_delta(AgentEventType.REASONING_DELTA, text)

    def write_tool_call_started(self, tool_call_id: str, tool_name: str) -> None:
        """Say that a tool call begins to run."""
        self.write_event(
            AgentEventType.TOOL_CALL_STARTED,
            {"tool_call_id": tool_call_id, "tool_name": tool_name},
        )

    def write_tool_call_finished(self, tool_call_id: str, tool_name: str, status: str) -> None:
        """Say that a tool call has its final status."""
        self.write_event(
            AgentEventType.TOOL_CALL_FINISHED,
            {"tool_call_id": tool_call_id, "tool_name": tool_name, "status": str(status)},
        )

    def write_event(self, event_type: AgentEventType, payload: dict[str, object]) -> None:
        """Write any event; text collected so far goes out before it."""
        with self._lock:
            if self._closed:
                return
            self._seal_delta()
            self._pending.append(self._event(event_type, payload))
            self._request_flush()

    def flush(self) -> None:
        """Write what is collected now. Call it on the event loop."""
        with self._lock:
            if self._closed:
                return
            self._seal_delta()
            batch, self._pending = self._pending, []
        self._emit(batch)

    def close(self) -> None:
        """Write what is collected and ignore everything after. Call it on the event loop."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._seal_delta()
            batch, self._pending = self._pending, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self._emit(batch)

    def _add_delta(self, event_type: AgentEventType, text: str) -> None:
        if not text:
            return
        with self._lock:
            if self._closed:
                return
            if self._delta_type is not event_type:
                self._seal_delta()
                self._delta_type = event_type
            for start in range(0, len(text), MAX_DELTA_CHARACTERS):
                piece = text[start : start + MAX_DELTA_CHARACTERS]
                if self._delta_length + len(piece) > MAX_DELTA_CHARACTERS:
                    self._seal_delta()
                    self._delta_type = event_type
                self._delta.append(piece)
                self._delta_length += len(piece)
            if self._pending or self._timer is None:
                self._request_flush()

    def _seal_delta(self) -> None:
        if self._delta and self._delta_type is not None:
            self._pending.append(self._event(self._delta_type, {"text": "".join(self._delta)}))
        self._delta = []
        self._delta_length = 0
        self._delta_type = None

    def _event(self, event_type: AgentEventType, payload: dict[str, object]) -> AgentEvent:
        return AgentEvent(
            event_type, self._turn_id, self._step_execution_id, self._attempt, payload
        )

    def _request_flush(self) -> None:
        """Wake the loop once; called with the lock held."""
        if self._flush_scheduled:
            return
        self._flush_scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._flush)
        except RuntimeError:
            # The loop is closed: the process is ending and nobody reads events any more.
            self._closed = True

    def _flush(self) -> None:
        with self._lock:
            self._flush_scheduled = False
            if self._closed:
                return
            batch, self._pending = self._pending, []
            if self._delta and self._timer is None:
                self._timer = self._loop.call_later(self._delta_interval, self._flush_delta)
        self._emit(batch)

    def _flush_delta(self) -> None:
        with self._lock:
            self._timer = None
            if self._closed:
                return
            self._seal_delta()
            batch, self._pending = self._pending, []
        self._emit(batch)

    def _emit(self, batch: list[AgentEvent]) -> None:
        for event in batch:
            try:
                self._write(event)
            except Exception:
                # Events are best effort: one that cannot be written must not fail the model call.
                _LOG.warning("dropped a %s event that could not be written", event.type)
