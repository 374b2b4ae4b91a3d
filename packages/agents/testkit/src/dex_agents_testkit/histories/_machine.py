"""Draws histories, plays several at a time on one agent, and judges each."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hypothesis.strategies import SearchStrategy

from dex_agents.testing import WaitTimeoutError
from dex_agents_testkit.faults import CrashableAgent
from dex_agents_testkit.histories._actions import DEFAULT_PLACES, History, draw_histories
from dex_agents_testkit.histories._invariants import (
    INVARIANTS,
    Invariant,
    InvariantBrokenError,
)
from dex_agents_testkit.histories._player import HistoryPlayer, StrikeBoard
from dex_agents_testkit.histories._witness import Witness

#: `SEED:NUMBER`: plays only that history, by itself.
HISTORY_VARIABLE: Final = "DEX_AGENTS_HISTORY"
DEFAULT_LANES: Final = 4


class HistoryFailedError(AssertionError):
    """A history broke an invariant, or did not come to its end. The cause says which.

    Attributes:
        seed: Seed of the histories.
        history: The one that failed.
    """

    def __init__(
        self, seed: int, history: History, problem: BaseException, witness: Witness
    ) -> None:
        super().__init__(
            f"{problem}\nhistory {history.number} of seed {seed}; play it alone with "
            f"{HISTORY_VARIABLE}={seed}:{history.number}\n{history.describe()}\n"
            f"what was seen:\n{witness.describe()}"
        )
        self.seed = seed
        self.history = history


@dataclass(slots=True)
class HistoriesReport:
    """What a run of the machine has shown.

    Attributes:
        seed: Its seed.
        actions: Number of actions of each history.
        strikes: How often each place was struck.
        preconditions: How often the precondition of each invariant was met.
        seconds: How long it took.
    """

    seed: int
    actions: list[int] = field(default_factory=list[int])
    strikes: Counter[str] = field(default_factory=Counter[str])
    preconditions: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0

    @property
    def median_actions(self) -> float:
        """Median number of actions of a history."""
        return statistics.median(self.actions) if self.actions else 0

    def render(self) -> str:
        """Return the report as text."""
        lines = [
            f"{len(self.actions)} histories of seed {self.seed} in {self.seconds:.0f} s, "
            f"median {self.median_actions:g} actions, {self.strikes.total()} strikes"
        ]
        lines += [f"  struck at {place:<26} {count:>5}" for place, count in self.strikes.items()]
        lines += [
            f"  {invariant.invariant_id:<26} {self.preconditions[invariant.invariant_id]:>7} "
            f"{invariant.precondition}"
            for invariant in INVARIANTS
        ]
        return "\n".join(lines)

    def require(self, least: int = 20, *, median: float = 8) -> None:
        """Make sure that the run has shown something.

        Args:
            least: How often every place must have been struck, and every precondition met.
            median: Least median number of actions.

        Raises:
            AssertionError: It has not; the message is the report.
        """
        few = [place for place, count in self.strikes.items() if count < least]
        few += [
            invariant.invariant_id
            for invariant in INVARIANTS
            if self.preconditions[invariant.invariant_id] < least
        ]
        if few or self.median_actions < median:
            raise AssertionError(f"too little of {', '.join(few) or 'actions'}\n{self.render()}")


class SessionMachine:
    """Plays random histories of any agent against its invariants.

        machine = SessionMachine("refund_agent:build_flow", st.sampled_from(["refund 7", "hello"]))
        report = await machine.run(tmp_path, histories=30)

    Hypothesis draws messages, answers, repetitions of both, readings, kills at named places and
    restarts. Several histories are played at a time on one engine. A failure names a seed and a
    number, with which `DEX_AGENTS_HISTORY` plays that history alone.

    Args:
        flow: The session Flow, as `CrashableAgent` takes it.
        messages: What users say.
        places: Where processes are killed.
        env: Variables added to the environment of the workers.
        invariants: What must hold; add your own to `INVARIANTS`.
        patience: Seconds that a session may take until it waits for somebody, crashes included.
    """

    def __init__(
        self,
        flow: str,
        messages: SearchStrategy[str],
        *,
        places: Sequence[str] = DEFAULT_PLACES,
        env: Mapping[str, str] | None = None,
        invariants: Sequence[Invariant] = INVARIANTS,
        patience: float = 120.0,
    ) -> None:
        self._flow = flow
        self._messages = messages
        self._places = tuple(places)
        self._env = dict(env or {})
        self._invariants = tuple(invariants)
        self._patience = patience

    async def run(
        self,
        state_dir: str | Path,
        *,
        histories: int = 30,
        seed: int = 1,
        lanes: int = DEFAULT_LANES,
    ) -> HistoriesReport:
        """Play histories until one fails or all are played.

        Args:
            state_dir: Folder for data and output.
            histories: How many; a number drawn with another count may be another history.
            seed: Which ones.
            lanes: How many are played at a time.

        Raises:
            HistoryFailedError: One of them broke an invariant.
        """
        only = os.environ.get(HISTORY_VARIABLE)
        number = None
        if only:
            named_seed, _, named_number = only.partition(":")
            seed, number = int(named_seed), int(named_number)
        drawn = draw_histories(self._messages, self._places, histories, seed)
        if number is not None:
            drawn = [history for history in drawn if history.number == number]
        report = HistoriesReport(seed, strikes=Counter(dict.fromkeys(self._places, 0)))
        started = time.monotonic()
        async with CrashableAgent(
            self._flow, state_dir, env=self._env, forks=sys.platform == "linux"
        ) as agent:
            board = StrikeBoard(agent)
            queue = iter(drawn)
            await self._play(agent, board, queue, report, min(lanes, len(drawn)))
            report.strikes.update(
                strike.place.kind.name for strike in agent.strikes if strike.has_struck
            )
        report.seconds = time.monotonic() - started
        return report

    async def _play(
        self,
        agent: CrashableAgent,
        board: StrikeBoard,
        queue: Iterator[History],
        report: HistoriesReport,
        lanes: int,
    ) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(lanes):
                    group.create_task(self._lane(agent, board, queue, report))
        except ExceptionGroup as failed:
            # The first one is what there is to look at; the others were cancelled or followed.
            first = failed.exceptions[0]
            raise first from first.__cause__

    async def _lane(
        self,
        agent: CrashableAgent,
        board: StrikeBoard,
        queue: Iterator[History],
        report: HistoriesReport,
    ) -> None:
        for history in queue:
            session_id = f"history-{report.seed}-{history.number}"
            player = HistoryPlayer(agent, board, session_id, self._patience)
            try:
                await player.play(history)
                player.witness.arrivals = agent.arrivals(session_id)
                for invariant in self._invariants:
                    met = invariant.check(player.witness)
                    report.preconditions[invariant.invariant_id] += met
            except Exception as error:
                problem = self._cause(player, agent, error)
                raise HistoryFailedError(report.seed, history, problem, player.witness) from problem
            report.actions.append(len(history.actions))

    def _cause(self, player: HistoryPlayer, agent: CrashableAgent, error: Exception) -> Exception:
        """Return why a history failed: a session that hangs says less than a breach."""
        if not isinstance(error, WaitTimeoutError):
            return error
        player.witness.arrivals = agent.arrivals(player.witness.session_id)
        for invariant in self._invariants:
            if invariant.judges_arrivals:
                try:
                    invariant.check(player.witness)
                except InvariantBrokenError as broken:
                    broken.__cause__ = error
                    return broken
        # Whoever waits for an agent that did not come back learns why it did not.
        failed = [f for strike in agent.strikes if isinstance(f := strike.failure, Exception)]
        return failed[0] if failed else error
