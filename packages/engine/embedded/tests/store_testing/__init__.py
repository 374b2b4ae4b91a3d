"""Opens stores in tests and stages what a `FlowDriver` does."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from kernel_testing import FlowDriver, start_with

from dex_embedded._kernel.events import HistoryEvent
from dex_embedded._kernel.inputs import StartFlow
from dex_embedded._kernel.state import FlowRun
from dex_embedded._store.protocol import Ticket
from dex_embedded._store.sqlite import SqliteStore, Synchronous, open_store

FILE_NAME = "dex.sqlite3"

_run_numbers = itertools.count(1)


def encode_event(event: HistoryEvent) -> bytes:
    """Good enough to tell events apart."""
    return f"{event.event_id} {type(event.payload).__name__}".encode()


def open_test_store(
    folder: Path, failures: list[BaseException] | None = None, synchronous: Synchronous = "NORMAL"
) -> SqliteStore:
    """A store in the folder; without a list to collect them, a failed write fails the test."""

    def on_failure(error: BaseException) -> None:
        assert failures is not None, error
        failures.append(error)

    store = open_store(
        folder / FILE_NAME,
        encode_event=encode_event,
        on_failure=on_failure,
        synchronous=synchronous,
    )
    assert isinstance(store, SqliteStore)
    return store


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[SqliteStore]:
    store = open_test_store(folder)
    try:
        yield store
    finally:
        await store.close()


class StoredFlow(FlowDriver):
    """A driven flow whose transitions are staged."""

    def __init__(self, store: SqliteStore, start: StartFlow | None = None) -> None:
        self.store = store
        self.tickets: list[Ticket] = []
        super().__init__(
            start or start_with(flow_id=f"flow-{next(_run_numbers)}"),
            new_run_key=store.new_run_key,
            on_transition=lambda transition: self.tickets.append(self.store.stage(transition)),
        )

    def go_on_with(self, store: SqliteStore, run: FlowRun) -> None:
        """Continue in another store, with what it has read."""
        self.store = store
        self.run = run

    async def durable(self) -> None:
        await self.tickets[-1].wait()


def comparable(run: FlowRun) -> FlowRun:
    """The run as a restart would find it: without the RPCs in flight and their locks."""
    for call in run.rpcs.values():
        for key in call.lock_keys:
            run.locks.pop(key, None)
    run.rpcs.clear()
    return run
