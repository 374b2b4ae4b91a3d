"""Kills the worker of the examples, or their engine, at a place."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from example_places import Place
from example_worker import KILL_FILE, KILLED_FILE, WORKER_FILE

from dex_agents.testing import AgentTestStack, wait_until
from dex_agents_testkit.faults._reaching import ArmedFault, FaultFile
from dex_agents_testkit.faults._standing import until_standing_or_ended

#: What of the engine's work belongs to the Steps of a session, and not to how a test looks at it.
_OF_STEPS = re.compile(
    r"(commit\.before|commit\.after|handout\.before|handout\.after)"
    r":(StartAgentSession|AwaitUserMessage|RunModel|AwaitToolApproval|CallTool"
    r"|CallSingleAttemptTool|RecordToolOutcomeUnknown|ResumeTurn|RecordTurnFailure"
    r"|resolve_interrupt|send_user_message|StartFlow)"
)


class Strike:
    """What becomes of a kill.

    Attributes:
        killed_worker: The worker that was killed, if it was one.
    """

    def __init__(self, killing: Coroutine[Any, Any, int | None]) -> None:
        self._killing = asyncio.create_task(killing)
        self.killed_worker: int | None = None

    @property
    def has_struck(self) -> bool:
        """Whether a process was killed; raises what went wrong."""
        if not self._killing.done():
            return False
        self.killed_worker = self._killing.result()
        return True

    async def take_back(self) -> None:
        """End it, whatever has become of it."""
        self._killing.cancel()
        await asyncio.gather(self._killing, return_exceptions=True)


class Kills:
    """Kills at places of a worker and of an engine.

    Args:
        stack: Whose engine it is. It must have been given `env`.
        folder: Where the processes look for what is wanted.
    """

    def __init__(self, stack: AgentTestStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._engine_file = FaultFile(folder / "engine-fault")

    @staticmethod
    def engine_env(folder: Path) -> dict[str, str]:
        """Return the environment of an engine that comes to places."""
        return {
            "DEX_EMBEDDED_FAULT_FILE": str(folder / "engine-fault"),
            "DEX_EMBEDDED_FAULT_LOG": str(folder / "engine-places.log"),
        }

    def engine_mark(self) -> int:
        """Return where the engine's log ends now."""
        log = self._folder / "engine-places.log"
        return log.stat().st_size if log.exists() else 0

    def engine_places(self, mark: int) -> list[Place]:
        """Return the places the engine has come to since a mark."""
        log = self._folder / "engine-places.log"
        if not log.exists():
            return []
        counts: Counter[str] = Counter()
        places: list[Place] = []
        for line in log.read_text()[mark:].splitlines():
            name = line.partition(" ")[0]
            if _OF_STEPS.fullmatch(name):
                counts[name] += 1
                places.append(Place(name, counts[name]))
        return places

    @asynccontextmanager
    async def at(self, place: Place | None, session_id: str) -> AsyncGenerator[Strike]:
        """Kill at a place, once, while the block runs; at none, nothing."""
        strike = Strike(
            _nothing()
            if place is None
            else self._at_engine(place)
            if place.is_of_engine
            else self._in_worker(place, session_id)
        )
        # So that what is wanted has been written when the session begins.
        await asyncio.sleep(0)
        try:
            yield strike
        finally:
            await strike.take_back()
            self._engine_file.disarm()
            (self._folder / KILL_FILE).unlink(missing_ok=True)

    async def _in_worker(self, place: Place, session_id: str) -> int:
        killed = self._folder / KILLED_FILE
        killed.unlink(missing_ok=True)
        (self._folder / KILL_FILE).write_text(json.dumps([session_id, place.name, place.count]))
        told = await wait_until(
            f"arrival at {place}", killed.read_text, timeout=120, ignore=(FileNotFoundError,)
        )
        return int(told)

    async def _at_engine(self, place: Place) -> int | None:
        dies = place.victim == "engine"
        self._engine_file.arm(ArmedFault(place.name, place.count, stops=not dies))
        engine = self._stack.engine
        await wait_until(
            f"arrival at {place}", lambda: self._engine_file.is_due, timeout=120, interval=0.01
        )
        await until_standing_or_ended(engine.process)
        if dies:
            await engine.wait_until_dead()
            await engine.restart()
            return None
        worker = int((self._folder / WORKER_FILE).read_text())
        os.kill(worker, signal.SIGKILL)
        engine.process.resume()
        return worker


async def _nothing() -> None:
    return None
