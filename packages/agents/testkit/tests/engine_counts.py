"""Counts what an engine in this process does, at the places where it does it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dex_agents.testing import wait_until
from dex_embedded import open_engine
from dex_embedded._runtime.faults import Faults
from dex_embedded._wire import codec
from dex_embedded._wire.worker_tasks import WorkerTaskService

_FRAMES = {"send.before": "task frames", "control.before": "control frames"}
_TRANSITIONS = ("commit.before", "handout.before")


class EngineCounts(Faults):
    """Takes the place of the kill points, and counts arrivals instead.

    Attributes:
        seen: How often what happened, since `reset`.
        task_bytes: Sizes of the task frames of Steps, by Step type, since `reset`.
        address: Where the engine listens.
        engine: The engine; anything but its address is private.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enabled = True
        self.seen: Counter[str] = Counter()
        self.task_bytes: dict[str, list[int]] = {}
        self.address = ""
        self.engine: Any = None

    def reach(self, place: str, subject: str = "") -> None:
        if place in _FRAMES:
            self.seen[_FRAMES[place]] += 1
        elif place in _TRANSITIONS:
            self.seen["transitions"] += 1
        elif place == "disk.before":
            self.seen["commits"] += 1
        elif place == "stream.before":
            self.seen["stream messages"] += 1
        elif place == "reply.before":
            self.seen["client calls"] += 1
            self.seen[f"client calls {subject}"] += 1

    def reset(self) -> None:
        self.seen.clear()
        self.task_bytes.clear()

    def watch_statements(self, connection: sqlite3.Connection, name: str) -> None:
        """Counts the statements of a connection, all but those that bound a transaction."""

        def count(sql: str) -> None:
            if not sql.startswith(("BEGIN", "COMMIT", "PRAGMA")):
                self.seen[name] += 1

        connection.set_trace_callback(count)

    def note_task(self, step_type: str, frame: bytes) -> None:
        self.task_bytes.setdefault(step_type, []).append(len(frame))

    @property
    def streams_opened(self) -> int:
        """Streams that workers have opened, ever."""
        return self.engine._dispatcher.table.streams_opened

    async def at_rest(self, flow_id: str) -> None:
        """Waits, without asking the engine for anything, until a flow waits for somebody else."""

        def rests() -> bool:
            resident = self.engine._runs._latest.get(flow_id)
            if resident is None or self.engine._dispatcher.table.tasks_out:
                return False
            return resident.run.is_idle and resident.is_durable and not resident.tasks

        await wait_until(f"rest of {flow_id}", rests, interval=0.002)


@asynccontextmanager
async def counted_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[EngineCounts]:
    """An engine in this process whose doings are counted."""
    counts = EngineCounts()
    encode = codec.encode_step_task
    receive = WorkerTaskService._receive

    def counted_encode(task_id: str, work: Any) -> bytes:
        frame = encode(task_id, work)
        counts.note_task(work.ref.step_execution_id.rpartition("-")[0], frame)
        return frame

    def counted_receive(self: WorkerTaskService, stream: Any, frame: Any) -> None:
        # How many pings there are to answer depends on how long tasks take on this machine.
        if frame.WhichOneof("frame") != "pong":
            counts.seen["frames from workers"] += 1
        receive(self, stream, frame)

    with monkeypatch.context() as patch:
        patch.setattr(Faults, "from_environment", classmethod(lambda _: counts))
        patch.setattr(codec, "encode_step_task", counted_encode)
        patch.setattr(WorkerTaskService, "_receive", counted_receive)
        async with open_engine(folder) as engine:
            counts.address, counts.engine = engine.address, engine._engine
            counts.watch_statements(counts.engine._store._writer, "statements written")
            counts.watch_statements(counts.engine._store._reader._connection, "statements read")
            yield counts
