"""Sessions come, take some turns and go, for as long as is asked for, and nothing grows.

`DEX_SOAK_MINUTES` says for how long. The engine is a process of its own; what is watched is its
memory, its open files, the data file with its log, and how long turns take.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from process_facts import MIB, memory_of, needs_proc, open_files_of

from dex_agents import AgentSessionClient
from dex_agents.local import open_sessions
from dex_agents.testing import EngineProcess, create_engine, wait_for_agent_snapshot
from dex_agents_testkit import scripted_session_flow
from dex_embedded._store.check import check_file

MINUTES = float(os.environ.get("DEX_SOAK_MINUTES", "2"))
LANES = 4
TURNS = 6
LOOK_EVERY = 0.3
"""Seconds between two looks at a session; looking costs the engine and the worker as well."""
SAMPLES = 60

MEMORY_GROWTH = 48 * MIB
LOG_BOUND = 80 * MIB
"""The engine makes commits wait for a checkpoint when its log is past 64 MiB."""
OPEN_FILES_GROWTH = 24
SLOWER = 3.0
LARGER = 1.5

SCRIPT = {
    "turn_in_message": True,
    "tools": {
        "look_up": {"effect": "read", "output": "order $order is paid"},
        "charge": {
            "effect": "non_idempotent_write",
            "requires_approval": False,
            "output": "charged $order",
        },
    },
}
CALLS = [
    {"id": "c1", "name": "look_up", "arguments": {"order": "7"}},
    {"id": "c2", "name": "charge", "arguments": {"order": "7"}},
]
MESSAGES = (
    json.dumps({"replies": [{"message": "x" * 500}]}),
    json.dumps({"replies": [{"tool_calls": CALLS}, {"message": "Done."}]}),
)


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment."""

    turns: int
    memory: int
    open_files: int
    data_file: int
    log: int
    turn_seconds: float


@dataclass
class Watch:
    """Looks at an engine from outside while sessions run."""

    engine: EngineProcess
    data_file: Path
    turns: int = 0
    recent: list[float] = field(default_factory=list[float])
    samples: list[Sample] = field(default_factory=list[Sample])

    def took(self, seconds: float) -> None:
        self.turns += 1
        self.recent.append(seconds)

    def look(self) -> None:
        pid = self.engine.process.pid
        log = self.data_file.with_name(f"{self.data_file.name}-wal")
        recent, self.recent = self.recent, []
        if recent:
            self.samples.append(
                Sample(
                    self.turns,
                    memory_of(pid),
                    open_files_of(pid),
                    self.data_file.stat().st_size,
                    log.stat().st_size if log.exists() else 0,
                    statistics.median(recent),
                )
            )

    def table(self) -> str:
        lines = [
            f"{'turns':>8}{'memory MiB':>12}{'open files':>12}{'file MiB':>10}{'log MiB':>9}"
            f"{'turn ms':>9}"
        ]
        step = max(1, len(self.samples) // 12)
        for each in [*self.samples[::step], self.samples[-1]]:
            lines.append(
                f"{each.turns:>8}{each.memory / MIB:>12.1f}{each.open_files:>12}"
                f"{each.data_file / MIB:>10.1f}{each.log / MIB:>9.1f}"
                f"{each.turn_seconds * 1_000:>9.0f}"
            )
        return "\n".join(lines)


def most(samples: Sequence[Sample], of: Callable[[Sample], float]) -> float:
    return max(map(of, samples))


def bytes_per_turn(samples: Sequence[Sample]) -> float:
    first, last = samples[0], samples[-1]
    return (last.data_file + last.log - first.data_file - first.log) / (last.turns - first.turns)


async def come_and_go(
    sessions: AgentSessionClient, watch: Watch, ids: itertools.count[int], ends_at: float
) -> None:
    while time.monotonic() < ends_at:
        session_id = f"soak-{next(ids)}"
        for number in range(TURNS):
            message = MESSAGES[number % len(MESSAGES)]
            began = time.monotonic()
            if number:
                await sessions.send_user_message(session_id, message)
            else:
                await sessions.start_session(session_id, message)
            await wait_for_agent_snapshot(
                sessions,
                session_id,
                lambda snapshot, done=number + 1: (
                    snapshot.state and snapshot.state.turn_count >= done
                ),
                timeout=120,
                interval=LOOK_EVERY,
            )
            watch.took(time.monotonic() - began)
        await sessions.stop_session(session_id)


@needs_proc
@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 600)
async def test_nothing_grows_while_sessions_come_and_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT))
    flow = scripted_session_flow(script, tmp_path / "state")
    engine = create_engine(tmp_path / "data", tmp_path)
    watch = Watch(engine, tmp_path / "data" / "dex.sqlite3")
    ends_at = time.monotonic() + MINUTES * 60
    ids = itertools.count()
    try:
        await engine.start()
        async with (
            open_sessions(flow, server_address=engine.address) as app,
            asyncio.TaskGroup() as group,
        ):
            lanes = [
                group.create_task(come_and_go(app.sessions(), watch, ids, ends_at))
                for _ in range(LANES)
            ]
            while not all(lane.done() for lane in lanes):
                await asyncio.wait(lanes, timeout=MINUTES * 60 / SAMPLES)
                watch.look()
    finally:
        await engine.stop()
    with capsys.disabled():
        print(f"\n{watch.turns} turns in {MINUTES:g} minutes\n{watch.table()}")
    assert not check_file(watch.data_file).problems

    # The first third is for caches to fill; what came after it must look like its own beginning.
    kept = watch.samples[len(watch.samples) // 3 :]
    assert len(kept) >= 6, "too few turns to compare anything"
    early, late = kept[: len(kept) // 2], kept[len(kept) // 2 :]
    assert most(late, lambda seen: seen.memory) <= (
        most(early, lambda seen: seen.memory) + MEMORY_GROWTH
    )
    assert most(late, lambda seen: seen.open_files) <= (
        most(early, lambda seen: seen.open_files) + OPEN_FILES_GROWTH
    )
    assert most(kept, lambda seen: seen.log) <= LOG_BOUND
    assert bytes_per_turn(late) <= LARGER * bytes_per_turn(early)
    typical = [statistics.median(seen.turn_seconds for seen in part) for part in (early, late)]
    assert typical[1] <= SLOWER * typical[0]
