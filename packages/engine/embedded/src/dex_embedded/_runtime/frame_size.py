"""The size every frame and reply must keep to.

The SDK refuses a message above 4 MiB and, on a worker stream, takes that for a permanent rejection:
one frame too large would silence a queue for a minute. So nothing leaves without this check, and
what does not fit fails the one method or call it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

MAXIMUM_FRAME_BYTES: Final = 3_670_016
"""3.5 MiB."""
_NAMED: Final = 5


class FrameTooLargeError(Exception):
    """A frame or reply is over the limit.

    Attributes:
        size: Its size in bytes.
        largest: The parts that contribute most, as (name, bytes), the largest first.
    """

    def __init__(self, what: str, size: int, largest: Sequence[tuple[str, int]]) -> None:
        parts = ", ".join(f"{name} {count:,} bytes" for name, count in largest)
        super().__init__(
            f"{what} is {size:,} bytes and the limit is {MAXIMUM_FRAME_BYTES:,};"
            f" the largest parts are: {parts}. Load or return less at a time"
        )
        self.size = size
        self.largest = tuple(largest)


def check_size(what: str, size: int, parts: Callable[[], list[tuple[str, int]]]) -> None:
    """Raises `FrameTooLargeError` if `size` is over the limit; only then asks for the parts."""
    if size > MAXIMUM_FRAME_BYTES:
        ranked = sorted(parts(), key=lambda part: part[1], reverse=True)
        raise FrameTooLargeError(what, size, ranked[:_NAMED])
