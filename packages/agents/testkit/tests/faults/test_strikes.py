"""Whatever ends a strike, whoever stood still for it goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dex_agents.testing import AgentTestStack, ChildProcess, Invocation, wait_until
from dex_agents_testkit.faults import Place, Victim
from dex_agents_testkit.faults._place_log import PlaceLog
from dex_agents_testkit.faults._reaching import FaultFile
from dex_agents_testkit.faults._standing import is_standing, until_standing_or_ended
from dex_agents_testkit.faults._strike import Action, Strike, StruckProcesses

pytestmark = pytest.mark.timeout(60)


class UnreadableLog(PlaceLog):
    def all(self) -> list[Invocation]:
        raise OSError("the log is gone")


class Scene:
    """A worker and an engine that do nothing by themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker = self._sleeper("worker")
        self.engine = self._sleeper("engine")
        self.worker_file = FaultFile(folder / "worker-fault")
        self.engine_file = FaultFile(folder / "engine-fault")

    def _sleeper(self, name: str) -> ChildProcess:
        return ChildProcess(name, ["sleep", "60"], log_path=self.folder / f"{name}.log")

    def strike(
        self, place: str, log: PlaceLog | None = None, action: Action = Action.KILL
    ) -> Strike:
        stack = SimpleNamespace(workers=(self.worker,), engine=SimpleNamespace(process=self.engine))
        processes = StruckProcesses(
            cast("AgentTestStack", stack),
            self.worker_file,
            self.engine_file,
            log or PlaceLog(self.folder / "places.jsonl"),
        )
        return Strike(processes, Place.parse(place), Victim.WORKER, action, 1)

    def come_to_the_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: self.worker.pid)
            assert self.worker_file.claim()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    try:
        yield made
    finally:
        made.worker.kill()
        made.engine.kill()


async def until_going(process: ChildProcess) -> None:
    async def goes_on() -> bool:
        process.require_running()
        return not await is_standing(process)

    await wait_until(f"{process.name} to go on", goes_on)


async def few_rounds() -> None:
    for _ in range(10):
        await asyncio.sleep(0.005)


async def test_a_worker_that_says_it_is_due_is_not_let_go_before_it_stands(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike = scene.strike("model.result")
    scene.come_to_the_place(monkeypatch)
    await few_rounds()
    assert not scene.engine_file.is_armed, "the worker does not stand still yet"
    scene.worker.pause()
    await wait_until("the engine's turn", lambda: scene.engine_file.is_armed)
    assert not await strike.disarm()
    await until_going(scene.worker)


async def test_an_error_in_a_strike_lets_the_worker_go_and_is_raised_where_the_test_waits(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike = scene.strike("model.result", UnreadableLog(scene.folder / "none"))
    scene.come_to_the_place(monkeypatch)
    scene.worker.pause()
    waits: tuple[Any, ...] = (strike.wait, strike.struck, strike.disarm)
    for wait in waits:
        with pytest.raises(OSError, match="the log is gone"):
            await wait()
    assert isinstance(strike.failure, OSError)
    await until_going(scene.worker)


async def test_a_strike_that_is_cancelled_lets_its_victim_go(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike = scene.strike("commit.before", action=Action.PAUSE)
    scene.engine_file.path.replace(scene.folder / "engine-fault.due")
    scene.engine.pause()
    await strike.struck()
    await until_standing_or_ended(scene.worker)
    await strike.cancel()
    await until_going(scene.worker)
    await until_going(scene.engine)
    assert strike.failure is None


async def test_a_process_that_is_no_worker_s_own_ends_the_strike_with_an_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike = scene.strike("model.result")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        assert scene.worker_file.claim()
    with pytest.raises(RuntimeError, match="process 1 came to the armed place"):
        await strike.wait()
