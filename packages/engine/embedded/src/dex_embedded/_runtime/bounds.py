"""How much the engine holds in memory for others, and what it answers when that is reached.

An answer of this kind is `UNAVAILABLE`, which a caller may repeat: nothing has happened. It is
never `RESOURCE_EXHAUSTED`, which a worker takes for a lasting rejection and pauses for a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from dex_embedded._runtime.call_errors import CallError, CallErrorKind

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What an engine holds in memory at most.

    Whatever goes beyond is answered `UNAVAILABLE`, changes nothing, and can be repeated a moment
    later. The numbers for tasks may be passed by what running work itself leads to: the next Steps
    of a Step and timers are never refused.

    Attributes:
        pending_calls: Calls that are being served, long polls apart.
        long_polls: Calls that wait for something to happen.
        call_bytes: Bytes of requests that are being served and of replies not yet taken. The reply
            of a call that changed something is sent all the same.
        calls_per_flow: RPCs in progress on one flow.
        queued_tasks: Tasks of one flow type that wait for a worker. Beyond it no flow of that type
            is started, and no RPC or message that may lead to more tasks is accepted.
        all_queued_tasks: The same for tasks of all flow types together.
        worker_streams: Streams that workers have opened.
        frames_per_stream: Frames that wait for one worker to read them. A stream beyond it is taken
            for dead.
        unsaved_bytes: Bytes of stream messages and heartbeats that one worker stream may be ahead
            of the disk; more are not read before the disk has caught up.
        message_bytes: One message of a client or worker.
        log_bytes: The log beside the data file. A program that reads the file for long keeps the
            engine from cutting it; beyond this nothing new is accepted or handed to workers.

    Raises:
        ValueError: A number is not positive.
    """

    pending_calls: int = 5_000
    long_polls: int = 20_000
    call_bytes: int = 512 * _MIB
    calls_per_flow: int = 1_000
    queued_tasks: int = 20_000
    all_queued_tasks: int = 50_000
    worker_streams: int = 10_000
    frames_per_stream: int = 64
    unsaved_bytes: int = _MIB
    message_bytes: int = 64 * _MIB
    log_bytes: int = 1024 * _MIB

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise ValueError(f"bound {each.name} must be at least 1")


DEFAULT_BOUNDS = Bounds()


def overloaded(what: str) -> CallError:
    """The answer to a call that there is no room for."""
    return CallError(CallErrorKind.OVERLOADED, f"the engine is overloaded: {what}; try again later")


@dataclass(frozen=True, slots=True)
class TaskRoom:
    """Whether there is room for more tasks of a flow type.

    Args:
        bounds: The numbers.
        waiting: How many tasks of a flow type wait for a worker.
        all_waiting: How many tasks wait in all.
    """

    bounds: Bounds
    waiting: Callable[[str], int]
    all_waiting: Callable[[], int]

    def check(self, flow_type: str) -> None:
        """Raises `CallError` when workers are too far behind for more work."""
        if self.waiting(flow_type) >= self.bounds.queued_tasks:
            raise overloaded(
                f"{self.bounds.queued_tasks:,} tasks of flow type {flow_type!r} wait for a worker"
            )
        if self.all_waiting() >= self.bounds.all_queued_tasks:
            raise overloaded(f"{self.bounds.all_queued_tasks:,} tasks wait for a worker")


class Admission:
    """Counts calls, long polls, streams and their bytes, and refuses what is too much.

    Args:
        bounds: The numbers.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.pending_calls = 0
        self.long_polls = 0
        self.worker_streams = 0
        self.call_bytes = 0
        self.log_is_full = False

    def enter_call(self, request_bytes: int, *, is_long_poll: bool, changes: bool) -> Held:
        """Takes in a call; `Held.release` gives back what it counts for.

        Raises:
            CallError: There is no room for it.
        """
        if changes and self.log_is_full:
            raise overloaded(
                "a program that reads the data file keeps its log from being cut; end that program"
            )
        if is_long_poll:
            if self.long_polls >= self._bounds.long_polls:
                raise overloaded(f"{self.long_polls:,} calls are waiting already")
        elif self.pending_calls >= self._bounds.pending_calls:
            raise overloaded(f"{self.pending_calls:,} calls are being served already")
        self.check_bytes(request_bytes)
        held = Held(self, is_long_poll)
        held.add_bytes(request_bytes)
        if is_long_poll:
            self.long_polls += 1
        else:
            self.pending_calls += 1
        return held

    def enter_stream(self) -> Callable[[], None]:
        """Takes in a worker stream; call the result when it ends.

        Raises:
            CallError: There are too many.
        """
        if self.worker_streams >= self._bounds.worker_streams:
            raise overloaded(f"workers have {self.worker_streams:,} streams open already")
        self.worker_streams += 1

        def leave() -> None:
            self.worker_streams -= 1

        return leave

    def check_bytes(self, count: int) -> None:
        """Raises `CallError` when this many more bytes are too many."""
        # A single message always passes when nothing else is held.
        if self.call_bytes and self.call_bytes + count > self._bounds.call_bytes:
            raise overloaded("requests and replies that nobody has taken yet fill its memory")


class Held:
    """What one call counts for."""

    def __init__(self, admission: Admission, is_long_poll: bool) -> None:
        self._admission = admission
        self._is_long_poll = is_long_poll
        self._bytes = 0
        self._released = False

    def add_bytes(self, count: int) -> None:
        """Counts the bytes of a request or reply in."""
        self._admission.call_bytes += count
        self._bytes += count

    def release(self) -> None:
        """The call is over and its reply taken. Twice is harmless."""
        if self._released:
            return
        self._released = True
        self._admission.call_bytes -= self._bytes
        if self._is_long_poll:
            self._admission.long_polls -= 1
        else:
            self._admission.pending_calls -= 1
