"""One strike: a process is killed or stopped when a place is reached, and comes back."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Final

from dex_agents.testing import AgentTestStack, ChildProcess, WorkerProcess, wait_until
from dex_agents.values import ToolEffect
from dex_agents_testkit.faults._place_log import PlaceLog
from dex_agents_testkit.faults._places import Place, Side, Victim
from dex_agents_testkit.faults._reaching import ArmedFault, FaultFile
from dex_agents_testkit.faults._standing import until_standing_or_ended

_POLL_SECONDS: Final = 0.005
_DAY: Final = 24 * 3600.0


class Action(StrEnum):
    """What a strike does to its victim: SIGKILL and a new process, or SIGSTOP until resumed."""

    KILL = "kill"
    PAUSE = "pause"


class PlaceNotReachedError(AssertionError):
    """A strike was asked for at a place that nothing came to, so the test has shown nothing.

    Attributes:
        place: The place.
    """

    def __init__(self, place: Place, reached: str) -> None:
        super().__init__(f"nothing came to {place}: {place.kind.meaning}\n{reached}")
        self.place = place


class StruckProcesses:
    """The processes of a crashable agent, as a strike sees them.

    Args:
        stack: Engine and workers.
        worker_file: Arms faults in the workers.
        engine_file: Arms faults in the engine.
        log: The places that workers have reached.
    """

    def __init__(
        self,
        stack: AgentTestStack,
        worker_file: FaultFile,
        engine_file: FaultFile,
        log: PlaceLog,
    ) -> None:
        self.stack = stack
        self.worker_file = worker_file
        self.engine_file = engine_file
        self._log = log

    @property
    def is_armed(self) -> bool:
        """Whether a strike waits for its place."""
        return self.worker_file.is_armed or self.engine_file.is_armed

    def claimant(self) -> WorkerProcess | None:
        """Return the worker that came to the armed place, which need not run any more.

        Raises:
            RuntimeError: It was a process that no worker is known by.
        """
        claimed = self.worker_file.claimant()
        if claimed is None:
            return None
        for worker in reversed(self.stack.workers):
            if worker.pid == claimed:
                return worker
        raise RuntimeError(f"process {claimed} came to the armed place, and is no worker's own")

    def effect_at(self, worker: WorkerProcess, place: str) -> ToolEffect | None:
        """Return the effect of the tool that a worker runs at the place it came to."""
        name, _, subject = place.partition(":")
        for entry in reversed(self._log.all()):
            is_there = entry.name == place or (not subject and entry.name.startswith(f"{name}:"))
            if is_there and entry.process_id == worker.pid:
                effect = entry.details.get("effect")
                return ToolEffect(effect) if effect else None
        return None

    def running_workers(self) -> list[WorkerProcess]:
        """Return the workers that have not ended."""
        return [worker for worker in self.stack.workers if worker.is_running]


class Strike:
    """A strike that was asked for. It runs by itself; `wait` says when its victim is back.

    Attributes:
        place: Where it strikes.
        victim: What it strikes.
        action: What it does.
    """

    def __init__(
        self,
        processes: StruckProcesses,
        place: Place,
        victim: Victim,
        action: Action,
        occurrence: int,
    ) -> None:
        self.place = place
        self.victim = victim
        self.action = action
        self._processes = processes
        self._struck = asyncio.Event()
        self._resumed = asyncio.Event()
        self._disarmed = False
        self._held: list[ChildProcess] = []
        self._file = self._arm_first(occurrence)
        self._task = asyncio.create_task(self._run(), name=f"strike at {place}")

    @property
    def has_struck(self) -> bool:
        """Whether the place was reached and the victim struck."""
        return self._struck.is_set()

    @property
    def is_over(self) -> bool:
        """Whether the victim is back, or the strike was taken back."""
        return self._task.done()

    @property
    def failure(self) -> BaseException | None:
        """Why it could not be carried out; `wait`, `struck` and `disarm` raise it."""
        if not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    async def struck(self, timeout: float = 60.0) -> None:
        """Wait until the victim has been struck.

        Raises:
            TimeoutError: Nothing came to the place in time.
            ChildProcessError: A process that was struck did not come back.
        """
        async with asyncio.timeout(timeout):
            waiting = asyncio.create_task(self._struck.wait())
            try:
                await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        if self._task.done():
            self._task.result()

    async def wait(self, timeout: float = 120.0) -> None:
        """Wait until the victim has been struck and is back.

        Raises:
            TimeoutError: Nothing came to the place in time.
            ChildProcessError: A process that was struck did not come back.
        """
        async with asyncio.timeout(timeout):
            await asyncio.wait({self._task})
        self._task.result()

    def resume(self) -> None:
        """Let a paused victim go on."""
        self._resumed.set()

    async def disarm(self) -> bool:
        """Take the strike back, or let it end where it has begun; return whether it has struck.

        Raises:
            ChildProcessError: A process that was struck did not come back.
        """
        self._resumed.set()
        while not self._task.done():
            if self._file.disarm():
                self._disarmed = True
            await asyncio.wait({self._task}, timeout=_POLL_SECONDS)
        self._task.result()
        return self.has_struck

    async def cancel(self) -> None:
        """End it, whatever it does just now."""
        self._task.cancel()
        await asyncio.wait({self._task})

    # --- inside ---------------------------------------------------------------------------------

    def _arm_first(self, occurrence: int) -> FaultFile:
        kind = self.place.kind
        if kind.side is Side.WORKER or kind.follows:
            alone = self.victim is Victim.WORKER and self.action is Action.KILL
            stops = bool(kind.follows) or not alone
            file = self._processes.worker_file
        else:
            stops = not (self.victim is Victim.ENGINE and self.action is Action.KILL)
            file = self._processes.engine_file
        file.arm(ArmedFault(self.place.first, occurrence, stops))
        return file

    async def _run(self) -> None:
        try:
            await self._carry_out()
        finally:
            # Taken back, failed or cancelled: nobody is left standing.
            for process in self._held:
                process.resume()

    async def _carry_out(self) -> None:
        processes = self._processes
        if not await self._due(self._file):
            return
        worker: WorkerProcess | None = None
        if self._file is processes.worker_file:
            worker = processes.claimant()
            assert worker is not None, "the worker that is due has said so"
            if self.place.kind.follows:
                # The worker stands still, so nothing can come in between.
                name = self.place.engine_place(processes.effect_at(worker, self.place.first))
                self._file = processes.engine_file
                alone = self.victim is Victim.ENGINE and self.action is Action.KILL
                self._file.arm(ArmedFault(name, 1, not alone))
                worker.resume()
                if not await self._due(self._file):
                    return
        workers = [worker] if worker is not None else processes.running_workers()
        if self.action is Action.KILL:
            await self._kill(workers)
        else:
            await self._pause(workers)

    async def _due(self, file: FaultFile) -> bool:
        """Wait until a process stands or died at the place; false when the strike was taken back.

        It says that it is due before it sends itself the signal.
        """
        processes = self._processes

        def arrived() -> ChildProcess | None:
            if file is processes.worker_file:
                return processes.claimant()
            return processes.stack.engine.process if file.is_due else None

        await wait_until(
            f"arrival at {self.place}",
            lambda: self._disarmed or arrived() is not None,
            timeout=_DAY,
            interval=_POLL_SECONDS,
        )
        process = arrived()
        if process is None:
            return False
        self._held.append(process)
        await until_standing_or_ended(process)
        return True

    async def _kill(self, workers: list[WorkerProcess]) -> None:
        engine = self._processes.stack.engine
        if self.victim is not Victim.ENGINE:
            for worker in workers:
                worker.kill()
        if self.victim is not Victim.WORKER:
            engine.kill()
        self._struck.set()
        # Whoever stands still at the place and is no victim goes on, before anybody comes back.
        if self.victim is Victim.ENGINE:
            for worker in workers:
                worker.resume()
        if self.victim is Victim.WORKER:
            engine.process.resume()
        else:
            await engine.restart()
        if self.victim is not Victim.ENGINE:
            start = self._processes.stack.start_worker
            started = await asyncio.gather(*(start() for _ in workers), return_exceptions=True)
            # One that does not come back is no reason to go without the others.
            for failed in started:
                if isinstance(failed, BaseException):
                    raise failed

    async def _pause(self, workers: list[WorkerProcess]) -> None:
        engine = self._processes.stack.engine.process
        at_worker = self._file is self._processes.worker_file
        stopped = [
            *(workers if self.victim is not Victim.ENGINE else ()),
            *((engine,) if self.victim is not Victim.WORKER else ()),
        ]
        self._held += stopped
        for process in stopped:
            process.pause()
        self._struck.set()
        if at_worker and self.victim is Victim.ENGINE:
            for worker in workers:
                worker.resume()
        if not at_worker and self.victim is Victim.WORKER:
            engine.resume()
        await self._resumed.wait()
        for process in stopped:
            process.resume()
