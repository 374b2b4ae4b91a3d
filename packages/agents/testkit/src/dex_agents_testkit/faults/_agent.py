"""An application's agent in processes that a test can strike at named places."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar
from uuid import uuid4

from dex import Codec, DexServiceError

from dex_agents.client import AgentSessionClient
from dex_agents.errors import SessionAlreadyExistsError, SessionNotFoundError
from dex_agents.testing import (
    AgentTestStack,
    Invocation,
    StartProcess,
    start_process,
    wait_for_agent_snapshot,
    wait_until,
)
from dex_agents.values import AgentInterrupt, AgentSnapshot
from dex_agents_testkit.faults._forking import Nursery
from dex_agents_testkit.faults._loading import absolute_reference, load_flow
from dex_agents_testkit.faults._place_log import PlaceLog
from dex_agents_testkit.faults._places import PLACES, Place, Side, Victim
from dex_agents_testkit.faults._reaching import (
    FAULT_FILE_VARIABLE,
    FLOW_VARIABLE,
    PLACE_LOG_VARIABLE,
    FaultFile,
)
from dex_agents_testkit.faults._strike import Action, PlaceNotReachedError, Strike, StruckProcesses

T = TypeVar("T")

#: What the workers run.
WORKER_MODULE: Final = "dex_agents_testkit.faults.worker"

_CALL_SECONDS: Final = 15.0
_WAIT_SECONDS: Final = 120.0


class NoEnginePlacesError(RuntimeError):
    """A place of the engine was named, but the engine that `DEXCLI` names has none."""

    def __init__(self, place: Place) -> None:
        super().__init__(
            f"{place} is reached by the embedded engine only; unset DEXCLI, or name a place of "
            "the worker"
        )


class CrashableAgent:
    """An agent whose engine and workers run in processes of their own, to be struck by a test.

        async with CrashableAgent("refund_agent:build_flow", tmp_path) as agent:
            agent.kill_at("tool.effect:refund")
            await agent.say("s1", "refund order 7")
            await agent.answer("s1", approved=True)
            await agent.turn_ended("s1")

    A killed process is replaced at once. When the block ends, a place that a strike waited for in
    vain is an error, since the test would have shown nothing.

    Args:
        flow: The session Flow: `module:name` or `file.py:name`, see `load_flow`.
        state_dir: Folder for data, output and the notes of all processes.
        env: Variables added to the environment of the workers.
        workers: How many worker processes serve the agent.
        worker_module: What they run; a module of your own must do what `worker.main` does.
        codecs: Codecs for value types of your own.
        forks: Fork processes from one that has imported everything, instead of starting each anew.
            Worth it for tests that kill dozens. Linux only, and not for modules that start threads
            when they are imported.
        start: How processes are started, for several agents that share one `forked_start`.

    Attributes:
        stack: Engine and workers.
    """

    def __init__(
        self,
        flow: str,
        state_dir: str | Path,
        *,
        env: Mapping[str, str] | None = None,
        workers: int = 1,
        worker_module: str = WORKER_MODULE,
        codecs: Mapping[object, Codec[Any]] | None = None,
        forks: bool = False,
        start: StartProcess | None = None,
    ) -> None:
        self._dir = Path(state_dir).absolute()
        self._dir.mkdir(parents=True, exist_ok=True)
        self._workers = workers
        place_path = self._dir / "places.jsonl"
        self._place_log = PlaceLog(place_path)
        self._engine_log = self._dir / "engine-places.log"
        worker_file = FaultFile(self._dir / "worker-fault")
        engine_file = FaultFile(self._dir / "engine-fault")
        common: dict[str, str] = {}
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            # Processes start again and again here, and need not compile their modules each time.
            common["PYTHONDONTWRITEBYTECODE"] = ""
            common["PYTHONPYCACHEPREFIX"] = str(self._dir / "bytecode")
        self._nursery = None
        if forks and start is None:
            self._nursery = Nursery({**common, **(env or {})}, self._dir / "nursery.log")
            start = self._nursery.start
        self.stack = AgentTestStack(
            self._dir,
            [load_flow(flow)],
            worker_module,
            worker_env={
                **common,
                **(env or {}),
                FLOW_VARIABLE: absolute_reference(flow),
                FAULT_FILE_VARIABLE: str(worker_file.path),
                PLACE_LOG_VARIABLE: str(place_path),
            },
            engine_env={
                **common,
                "DEX_EMBEDDED_FAULT_FILE": str(engine_file.path),
                "DEX_EMBEDDED_FAULT_LOG": str(self._engine_log),
            },
            codecs=codecs,
            start=start or start_process,
        )
        self._processes = StruckProcesses(self.stack, worker_file, engine_file, self._place_log)
        self._strikes: list[Strike] = []

    async def __aenter__(self) -> CrashableAgent:
        """Start the engine and the workers."""
        try:
            await self.stack.__aenter__()
            await asyncio.gather(*(self.stack.start_worker() for _ in range(self._workers)))
        except BaseException as error:
            await self._close(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every process.

        Raises:
            PlaceNotReachedError: A strike still waits for its place, and nothing else went wrong.
        """
        try:
            if error is None:
                await self._finish_strikes()
        except BaseException as unfinished:
            error_type, error, traceback = type(unfinished), unfinished, unfinished.__traceback__
            raise
        finally:
            for strike in self._strikes:
                if error is not None and strike.failure not in (None, error):
                    error.add_note(f"the strike at {strike.place} failed: {strike.failure}")
                await strike.cancel()
            await self._close(error_type, error, traceback)

    async def _close(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.stack.__aexit__(error_type, error, traceback)
        finally:
            if self._nursery is not None:
                self._nursery.close()
                self._nursery = None

    @property
    def sessions(self) -> AgentSessionClient:
        """The client of the agent's sessions."""
        return self.stack.sessions()

    # --- strikes --------------------------------------------------------------------------------

    def kill_at(
        self, place: str, victim: Victim | str = Victim.WORKER, *, occurrence: int = 1
    ) -> Strike:
        """Kill a process with SIGKILL when a place is reached, and start it again.

        Args:
            place: One of `PLACES`, as `tool.effect:refund`, or a name given to `reach_place`.
            victim: `worker`, `engine` or `both`.
            occurrence: Which arrival from now on, counted by each process for itself.

        Raises:
            UnknownPlaceError: There is no such place.
            NoEnginePlacesError: The place belongs to the embedded engine, and another one runs.
            RuntimeError: Another strike still waits for its place.
        """
        return self._strike(place, victim, Action.KILL, occurrence)

    def pause_at(
        self, place: str, victim: Victim | str = Victim.WORKER, *, occurrence: int = 1
    ) -> Strike:
        """Stop a process with SIGSTOP when a place is reached, until `Strike.resume`.

        The arguments and errors are those of `kill_at`.
        """
        return self._strike(place, victim, Action.PAUSE, occurrence)

    def _strike(self, text: str, victim: Victim | str, action: Action, occurrence: int) -> Strike:
        place = Place.parse(text)
        if occurrence < 1:
            raise ValueError(f"occurrence counts from 1, not from {occurrence}")
        if place.kind.side is Side.ENGINE and not self.stack.engine.has_fault_places:
            raise NoEnginePlacesError(place)
        waiting = [strike for strike in self._strikes if not strike.is_over]
        if waiting:
            raise RuntimeError(f"a strike at {waiting[0].place} is not over; wait for it first")
        strike = Strike(self._processes, place, Victim(victim), action, occurrence)
        self._strikes.append(strike)
        return strike

    async def _finish_strikes(self) -> None:
        for strike in self._strikes:
            waited = not strike.is_over
            if not await strike.disarm() and waited:
                raise PlaceNotReachedError(strike.place, self.report())

    # --- what was reached -----------------------------------------------------------------------

    @property
    def reached(self) -> Counter[str]:
        """How often each place was reached, over all processes; with and without its subject."""
        counted: Counter[str] = Counter()
        lines = [entry.name for entry in self._place_log.all()]
        if self._engine_log.exists():
            # A line of the engine goes on with what workers have in their hands.
            written = self._engine_log.read_text(encoding="utf-8").splitlines()
            lines += [line.partition(" ")[0] for line in written]
        for line in lines:
            counted[line] += 1
            name, _, subject = line.partition(":")
            if subject:
                counted[name] += 1
        return counted

    @property
    def strikes(self) -> tuple[Strike, ...]:
        """Every strike that was asked for, in order."""
        return tuple(self._strikes)

    def arrivals(self, session_id: str | None = None) -> tuple[Invocation, ...]:
        """Return the arrivals at places of a worker, with their facts, in order.

        Args:
            session_id: Only those on behalf of one session.
        """
        log = self._place_log
        return tuple(log.all() if session_id is None else log.of(session_id))

    def counts(self) -> dict[str, int]:
        """Return how often each place was reached and each strike was made, for a report."""
        reached = self.reached
        named = [kind.name for kind in PLACES if not kind.follows]
        own = sorted(place for place in reached if place.partition(":")[0] not in named)
        counts = {f"reached {place}": reached[place] for place in (*named, *own)}
        for strike in self._strikes:
            line = f"{strike.action} {strike.victim} at {strike.place}"
            counts[line] = counts.get(line, 0) + strike.has_struck
        return counts

    def report(self) -> str:
        """Return the same as text."""
        return "\n".join(f"  {line:<40} {count:>6}" for line, count in self.counts().items())

    # --- what a user does, over whatever downtime there is --------------------------------------

    async def say(self, session_id: str, text: str, *, message_id: str | None = None) -> str:
        """Send a user message; the first one starts the session.

        Returns:
            The id of the message, which makes a repetition harmless.
        """
        given = message_id or uuid4().hex

        async def send() -> None:
            try:
                await self.sessions.send_user_message(session_id, text, message_id=given)
            except SessionNotFoundError:
                try:
                    await self.sessions.start_session(session_id, text, message_id=given)
                except SessionAlreadyExistsError:
                    # Another message was first, in the same instant.
                    await self.sessions.send_user_message(session_id, text, message_id=given)

        await until_served(send)
        return given

    async def answer(
        self, session_id: str, *, approved: bool, rejection_message: str | None = None
    ) -> AgentInterrupt:
        """Wait for a question of the session and answer it, as often as it takes."""
        interrupt = await wait_for_agent_snapshot(
            self.sessions,
            session_id,
            lambda snapshot: next(iter(snapshot.pending_interrupts), None),
            description="a question",
            timeout=_WAIT_SECONDS,
        )

        async def answered() -> bool:
            await self.sessions.resolve_interrupt(
                session_id,
                interrupt.interrupt_id,
                approved=approved,
                rejection_message=rejection_message,
            )
            snapshot = await self.sessions.get_agent_snapshot(session_id)
            return all(
                pending.interrupt_id != interrupt.interrupt_id
                for pending in snapshot.pending_interrupts
            )

        await wait_until(
            f"the answer to {interrupt.interrupt_id!r} to be taken",
            lambda: asyncio.wait_for(answered(), _CALL_SECONDS),
            timeout=_WAIT_SECONDS,
            ignore=(DexServiceError, TimeoutError),
        )
        return interrupt

    async def turn_ended(self, session_id: str, number: int = 1) -> AgentSnapshot:
        """Wait until a turn of the session has ended, completed or failed."""
        return await wait_for_agent_snapshot(
            self.sessions,
            session_id,
            lambda snapshot: (
                snapshot if snapshot.state and snapshot.state.turn_count >= number else None
            ),
            description=f"the end of turn {number}",
            timeout=_WAIT_SECONDS,
        )


async def until_served(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call again and again until the engine has answered it.

    Raises:
        WaitTimeoutError: It did not in two minutes.
    """

    async def once() -> tuple[T]:
        return (await asyncio.wait_for(call(), _CALL_SECONDS),)

    served = await wait_until(
        "an answer of the engine",
        once,
        timeout=_WAIT_SECONDS,
        ignore=(DexServiceError, TimeoutError),
    )
    return served[0]
