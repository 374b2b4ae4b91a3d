"""One turn of the demo: a message, live events, a kill in the middle, and the approval."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

from demo_checks import TurnRecord
from demo_processes import DemoProcesses
from demo_screen import Screen
from dex import DexServiceError, LongPollTimeoutError
from rich.markup import escape
from shop import Shop

from dex_agents import AgentEventType, AgentInterrupt, AgentSessionClient, AgentSnapshot
from dex_agents.testing import wait_for_agent_snapshot, wait_until

REFUND_TOOL = "refund_order"
LOOK_UP_SECONDS = 0.5
PATIENT_SECONDS = 24 * 3600.0


class Turn:
    """Plays one turn of a session.

    Args:
        screen: Where it is shown.
        sessions: Client of the session.
        processes: The processes, of which one may be killed.
        record: Takes down what happened.
        approve: Asks a person; `None` approves without asking.
    """

    def __init__(
        self,
        screen: Screen,
        sessions: AgentSessionClient,
        processes: DemoProcesses,
        record: TurnRecord,
        approve: Callable[[AgentInterrupt], Awaitable[bool]] | None,
    ) -> None:
        self._screen = screen
        self._sessions = sessions
        self._processes = processes
        self._record = record
        self._approve = approve
        self._answered: set[str] = set()

    async def play(self, message: str) -> AgentSnapshot:
        """Send the message, follow the turn to its end, and return the session after it.

        A turn that an earlier run left unfinished is followed without a new message.
        """
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(self._show_events())]
                if self._record.kill_wanted:
                    helpers.append(group.create_task(self._kill_in_look_up()))
                await self._send(message)
                snapshot = await self._follow()
                await self._screen.wait_for(
                    lambda event: (
                        event.type in (AgentEventType.TURN_COMPLETED, AgentEventType.TURN_FAILED)
                    )
                )
                for helper in helpers:
                    helper.cancel()
        except ExceptionGroup as group_of_one:
            raise group_of_one.exceptions[0] from None
        self._show_missed_answer(snapshot)
        return snapshot

    async def _send(self, message: str) -> None:
        if self._record.is_resumed:
            return
        if self._record.before is None:
            await self._sessions.start_session(self._record.session_id, message)
        else:
            await self._sessions.send_user_message(self._record.session_id, message)

    async def _follow(self) -> AgentSnapshot:
        """Answer questions until the turn has ended."""
        while True:
            snapshot = await wait_for_agent_snapshot(
                self._sessions,
                self._record.session_id,
                self._ended_or_asks,
                description="the end of the turn or a question",
                timeout=PATIENT_SECONDS,
            )
            open_questions = self._questions(snapshot)
            if not open_questions:
                return snapshot
            for interrupt in open_questions:
                await self._answer(interrupt)

    def _ended_or_asks(self, snapshot: AgentSnapshot) -> AgentSnapshot | None:
        state = snapshot.state
        if state is None:
            return None
        ended = state.turn_count >= self._record.turn_number
        return snapshot if ended or self._questions(snapshot) else None

    def _questions(self, snapshot: AgentSnapshot) -> list[AgentInterrupt]:
        return [
            interrupt
            for interrupt in snapshot.pending_interrupts
            if interrupt.interrupt_id not in self._answered
        ]

    async def _answer(self, interrupt: AgentInterrupt) -> None:
        # What the model said before its question is on the way; let it be shown first.
        await self._screen.wait_for(
            lambda event: event.payload.get("interrupt_id") == interrupt.interrupt_id
        )
        self._screen.question(interrupt)
        if self._approve is None:
            approved = True
            self._screen.line("", "[dim]approved without asking (--yes, or no terminal)[/]")
        else:
            approved = await self._approve(interrupt)
        await self._sessions.resolve_interrupt(
            self._record.session_id,
            interrupt.interrupt_id,
            approved=approved,
            rejection_message=None if approved else "The person said no.",
        )
        self._answered.add(interrupt.interrupt_id)
        if interrupt.tool_name == REFUND_TOOL:
            answers = self._record.approved if approved else self._record.rejected
            answers.add(self._record.key_prefix + interrupt.tool_call_id)

    async def _kill_in_look_up(self) -> None:
        """Kill the worker while the shop's own log says that it is looking an order up."""
        shop, record = Shop(self._processes.shop_dir), self._record

        def look_up_of_worker() -> str | None:
            for note in shop.look_ups():
                if note["key"].startswith(record.key_prefix) and note["pid"] == record.worker.pid:
                    return note["key"]
            return None

        key = await wait_until(
            "a look-up", look_up_of_worker, timeout=PATIENT_SECONDS, interval=0.02
        )
        await self._screen.wait_for(
            lambda event: (
                event.type is AgentEventType.TOOL_CALL_STARTED
                and event.payload["tool_call_id"] == key.rpartition("/")[2]
            )
        )
        record.worker.kill()
        record.killed_call = key
        self._screen.line(
            "[red]✗[/]",
            f"[red]worker killed with SIGKILL in the middle[/] [dim]process {record.worker.pid}[/]",
        )
        worker = await self._processes.start_worker(LOOK_UP_SECONDS)
        self._screen.line("[green]✓[/]", f"another worker started [dim]process {worker.pid}[/]")

    async def _show_events(self) -> None:
        turn_id = f"turn-{self._record.turn_number}"
        token = ""
        while True:
            try:
                message = await self._sessions.read_agent_event(
                    self._record.session_id, token, timeout=timedelta(seconds=5)
                )
            except LongPollTimeoutError:
                continue
            except DexServiceError:
                # Events are best effort; the snapshot tells when something is wrong.
                await asyncio.sleep(0.2)
                continue
            token = message.resume_token
            if message.value.turn_id == turn_id:
                with contextlib.suppress(KeyError):
                    self._screen.event(message.value)

    def _show_missed_answer(self, snapshot: AgentSnapshot) -> None:
        """Show the stored answer when its live text did not arrive."""
        answer = snapshot.messages[-1].text if snapshot.messages else ""
        if answer and not self._screen.has_shown(answer):
            self._screen.line("[bold]Agent[/]", escape(answer))
