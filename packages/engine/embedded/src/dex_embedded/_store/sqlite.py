"""The SQLite store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from dex_embedded._kernel.events import HistoryEvent
from dex_embedded._store.protocol import Store

Synchronous = Literal["FULL", "NORMAL"]


def open_store(
    path: Path,
    *,
    encode_event: Callable[[HistoryEvent], bytes],
    on_failure: Callable[[BaseException], None],
    synchronous: Synchronous = "FULL",
) -> Store:
    """Open or create the data file and hold it exclusively. Needs a running event loop.

    Args:
        path: The data file; its folder exists.
        encode_event: Turns a history event into the bytes to keep.
        on_failure: Called once, on the loop, when a write fails.
        synchronous: FULL survives a power cut; NORMAL may lose the newest commits in one (never in
            a crash of the process) and saves one disk flush a commit.

    Raises:
        StoreUnusableError: The file cannot be used; the subclass says why. Nothing was written.
    """
    raise NotImplementedError
