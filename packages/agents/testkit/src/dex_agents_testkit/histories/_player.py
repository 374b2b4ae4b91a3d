"""Plays one history on an agent that other histories share, and writes down what it sees."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from dex import DexServiceError, LongPollTimeoutError, StreamMessage

from dex_agents.errors import SessionNotFoundError
from dex_agents.testing import (
    WaitTimeoutError,
    read_step_history,
    wait_for_agent_snapshot,
    wait_until,
)
from dex_agents.values import (
    AgentEvent,
    AgentEventType,
    AgentMessage,
    AgentMessagesPage,
    AgentSnapshot,
    AgentStatus,
)
from dex_agents_testkit.faults import CrashableAgent, Strike, Victim, until_served
from dex_agents_testkit.histories._actions import (
    Action,
    Answer,
    AnswerAgain,
    History,
    Kill,
    Look,
    Restart,
    Say,
    SayAgain,
    Settle,
)
from dex_agents_testkit.histories._witness import Witness

T = TypeVar("T")

_WAIT_SECONDS: Final = 180.0
_POLL_SECONDS: Final = 0.1
#: Seconds in which a place has to be reached when the next strike waits.
_GRACE_SECONDS: Final = 10.0
#: How often an open question may refuse its answer before the history fails.
_ANSWERS_TO_ONE: Final = 20
_EVENT_POLL: Final = timedelta(seconds=2)


class StrikeBoard:
    """Lets the histories that share an agent strike it one after the other.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: CrashableAgent) -> None:
        self._agent = agent
        self._lock = asyncio.Lock()
        self._current: Strike | None = None

    async def kill(self, place: str, victim: Victim) -> Strike:
        """Ask for a kill once every strike before it is over."""
        async with self._lock:
            await self._over()
            self._current = self._agent.kill_at(place, victim)
            return self._current

    async def restart(self, victim: Victim) -> None:
        """End a process in good order and start it again."""
        stack = self._agent.stack
        async with self._lock:
            await self._over()
            if victim is not Victim.ENGINE:
                old = [worker for worker in stack.workers if worker.is_running]
                await stack.start_worker()
                for worker in old:
                    await worker.stop()
            if victim is not Victim.WORKER:
                await stack.engine.stop()
                await stack.engine.restart()

    async def _over(self) -> None:
        strike = self._current
        if strike is None:
            return
        with contextlib.suppress(WaitTimeoutError):
            await wait_until(
                f"the strike at {strike.place}",
                lambda: strike.has_struck or strike.is_over,
                timeout=_GRACE_SECONDS,
            )
        # Whoever could reach the place may wait for its own turn here, so it is not waited for.
        await strike.disarm()


class HistoryPlayer:
    """Plays one history.

    Args:
        agent: The agent, shared with other histories.
        board: Through which it strikes the agent.
        session_id: The session to play it on.
        patience: Seconds that the session may take until it waits for somebody.
    """

    def __init__(
        self, agent: CrashableAgent, board: StrikeBoard, session_id: str, patience: float
    ) -> None:
        self._patience = patience
        self.witness = Witness(session_id)
        self._agent = agent
        self._board = board
        self._session_id = session_id
        self._strikes: list[Strike] = []
        self._taken: set[str] = set()

    async def play(self, history: History) -> None:
        """Do everything that the history says, then answer all questions until all turns end."""
        try:
            for action in history.actions:
                await self._do(action)
            await self._finish()
        finally:
            for strike in self._strikes:
                await strike.disarm()

    async def _do(self, action: Action) -> None:
        witness = self.witness
        match action:
            case Say(text):
                message_id = f"{self._session_id}-m{len(witness.sent) + 1}"
                await self._agent.say(self._session_id, text, message_id=message_id)
                witness.sent.append((message_id, text))
            case SayAgain(back) if witness.sent:
                message_id, text = witness.sent[-1 - back % len(witness.sent)]
                await self._agent.say(self._session_id, text, message_id=message_id)
                witness.sent_again += 1
            case Answer() if witness.sent:
                await self._answer(action)
            case AnswerAgain(approved, back) if witness.answered:
                interrupt_id = witness.answered[-1 - back % len(witness.answered)]
                witness.answered_again.append(await self._resolve(interrupt_id, approved))
            case Look() if witness.sent:
                witness.looks.append((await self._snapshot(), await self._messages()))
            case Settle() if witness.sent:
                await self._until(self._is_waiting, "a session that waits for somebody")
            case Kill(place, victim):
                self._strikes.append(await self._board.kill(place, victim))
            case Restart(victim):
                await self._board.restart(victim)
            case _:
                # Nothing was said yet that it could be about.
                return

    # --- single actions -------------------------------------------------------------------------

    async def _answer(self, answer: Answer) -> None:
        snapshot = await self._until(self._is_waiting, "a question, or the end of all turns")
        questions = self._open_questions(snapshot)
        if not questions:
            return
        interrupt_id = questions[0]
        if self.witness.answered.count(interrupt_id) >= _ANSWERS_TO_ONE:
            raise AssertionError(f"{interrupt_id!r} stays open and takes no answer")
        taken = await self._resolve(interrupt_id, answer.approved, answer.rejection_message)
        self.witness.answered.append(interrupt_id)
        if not taken:
            return
        self._taken.add(interrupt_id)
        if interrupt_id in _question_ids(await self._snapshot()):
            # It must not be open any more, and if it is, it must not take another answer.
            again = await self._resolve(interrupt_id, answer.approved)
            self.witness.answered_again.append(again)

    def _open_questions(self, snapshot: AgentSnapshot) -> list[str]:
        """Return the questions that have not taken an answer, by what they said to it."""
        return [found for found in _question_ids(snapshot) if found not in self._taken]

    def _is_waiting(self, snapshot: AgentSnapshot) -> bool:
        """Whether nothing moves until somebody says or answers something."""
        return bool(self._open_questions(snapshot)) or _is_idle(snapshot)

    async def _resolve(self, interrupt_id: str, approved: bool, message: str | None = None) -> bool:
        return await until_served(
            lambda: self._agent.sessions.resolve_interrupt(
                self._session_id, interrupt_id, approved=approved, rejection_message=message
            )
        )

    async def _finish(self) -> None:
        witness = self.witness
        turns = len(witness.sent)
        while True:
            witness.snapshot = await self._until(
                lambda seen: bool(self._open_questions(seen)) or _has_ended(seen, turns),
                "a question, or the end of all turns",
            )
            if not self._open_questions(witness.snapshot):
                break
            await self._answer(Answer(approved=True))
        witness.messages = await self._messages()
        await self._read_events()
        witness.steps = await self._served(
            lambda: read_step_history(self._agent.stack.server_address, self._session_id)
        )

    # --- reading --------------------------------------------------------------------------------

    async def _snapshot(self) -> AgentSnapshot:
        return await self._served(lambda: self._agent.sessions.get_agent_snapshot(self._session_id))

    async def _until(self, probe: Callable[[AgentSnapshot], bool], what: str) -> AgentSnapshot:
        return await wait_for_agent_snapshot(
            self._agent.sessions,
            self._session_id,
            lambda snapshot: snapshot if probe(snapshot) else None,
            description=what,
            timeout=self._patience,
            interval=_POLL_SECONDS,
        )

    async def _messages(self) -> tuple[AgentMessage, ...]:
        found: list[AgentMessage] = []
        has_more = True
        while has_more:
            page = await self._served(partial(self._page, len(found)))
            found += page.messages
            has_more = page.has_more
        return tuple(found)

    async def _page(self, after: int) -> AgentMessagesPage:
        return await self._agent.sessions.list_agent_messages(self._session_id, after)

    async def _event(self, token: str) -> StreamMessage[AgentEvent]:
        return await self._agent.sessions.read_agent_event(self._session_id, token, _EVENT_POLL)

    async def _read_events(self) -> None:
        last_turn = f"turn-{self.witness.turn_count}"
        ends = (AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED)
        token, silent = "", 0
        # The last event is written after the commit that the snapshot has shown, so it may be late.
        while silent < 5:
            try:
                found = await self._served(partial(self._event, token))
            except LongPollTimeoutError:
                silent += 1
                continue
            token = found.resume_token
            self.witness.events.append(found.value)
            if found.value.type in ends and found.value.turn_id == last_turn:
                return

    @staticmethod
    async def _served(call: Callable[[], Awaitable[T]]) -> T:
        """Make a harmless call until the engine answers it; an empty poll is an answer."""

        async def once() -> tuple[T | None, LongPollTimeoutError | None]:
            try:
                return await asyncio.wait_for(call(), 15), None
            except LongPollTimeoutError as error:
                return None, error

        value, empty = await wait_until(
            "an answer of the engine",
            once,
            timeout=_WAIT_SECONDS,
            interval=_POLL_SECONDS,
            ignore=(DexServiceError, TimeoutError, SessionNotFoundError, ConnectionError),
        )
        if empty is not None:
            raise empty
        return value  # pyright: ignore[reportReturnType] - it is what the call returned


def _question_ids(snapshot: AgentSnapshot) -> list[str]:
    return [interrupt.interrupt_id for interrupt in snapshot.pending_interrupts]


def _is_idle(snapshot: AgentSnapshot) -> bool:
    state = snapshot.state
    return (
        state is not None
        and state.status is AgentStatus.WAITING_FOR_USER_MESSAGE
        and not snapshot.queued_message_count
    )


def _has_ended(snapshot: AgentSnapshot, turns: int) -> bool:
    """Whether every message has had its turn."""
    state = snapshot.state
    return _is_idle(snapshot) and state is not None and state.turn_count >= turns
