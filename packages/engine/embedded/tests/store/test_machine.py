from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import settings
from kernel_testing import FlowDriver, start_with
from kernel_testing.machine import KINDS, KernelMachine
from store_testing import StoredFlow, comparable, open_test_store

from dex_embedded._store.sqlite import SqliteStore


class StoreMachine(KernelMachine):
    """The kernel's machine with every transition staged, and restarts that read the file back."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory()
        self._store = self._open()

    def _open(self) -> SqliteStore:
        async def in_loop() -> SqliteStore:
            return open_test_store(Path(self._folder.name))

        return self._loop.run_until_complete(in_loop())

    def make_flow(self, step_type: str) -> FlowDriver:
        return StoredFlow(self._store, start_with(step_type, KINDS[step_type], flow_id="flow"))

    def restart(self) -> None:
        flow = self.flow
        assert isinstance(flow, StoredFlow)
        self._loop.run_until_complete(flow.durable())
        self._loop.run_until_complete(self._store.close())
        self._store = self._open()
        loaded = self._store.load(flow.run.key)
        assert loaded == comparable(flow.run)
        flow.go_on_with(self._store, loaded)

    def teardown(self) -> None:
        if hasattr(self, "flow"):
            self.restart()
        self._loop.run_until_complete(self._store.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self._folder.cleanup()


TestWhatTheStoreReadsBackEqualsWhatWasInMemory = StoreMachine.TestCase
TestWhatTheStoreReadsBackEqualsWhatWasInMemory.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None
)
