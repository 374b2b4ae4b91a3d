"""A support agent that survives having its process killed.

Run it with `make demo`, with options as `make demo ARGS="--yes"`. It starts an engine, a model and
a worker, each in a process of its own, asks for a refund, and kills the worker in the middle.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from demo_checks import (
    Check,
    SessionBefore,
    TurnRecord,
    check_turn,
    refunds_of,
    requests_since,
)
from demo_processes import HERE, DemoProcesses, ModelChoice
from demo_screen import Screen, history_table
from demo_turn import LOOK_UP_SECONDS, Turn
from rich.console import Console
from rich.markup import escape
from shop import Shop

from dex_agents import (
    AgentInterrupt,
    AgentMessage,
    AgentSessionClient,
    AgentSnapshot,
    DexAgentsError,
    SessionNotFoundError,
)
from dex_agents.local import open_sessions
from dex_agents.testing import ChildProcessError, read_step_history
from dex_agents_testkit import ScriptError
from dex_agents_testkit.model_server import load_model_script, read_recorded_requests

FLOW_TYPE = "SupportAgent"
SCRIPTED = "scripted"
DEFAULT_SCRIPT = HERE / "model_script.json"
DEFAULT_DATA = HERE.parents[2] / ".demo"
FIRST_MESSAGE = "My order 7 arrived broken. I want my money back."
LATER_MESSAGE = "Which order was that again, and is it settled?"
# Long enough to be killed in on any machine; the worker that takes over looks up faster.
SLOW_LOOK_UP_SECONDS = 30.0


@dataclass(frozen=True)
class Options:
    """What the demo was asked to do.

    Attributes:
        session_id: The session.
        data_dir: Folder of everything that is kept.
        model: Which model answers.
        message: What to say; `None` for the demo's own words.
        ask: Whether a person answers the approval.
        kill: Whether the worker is killed.
        limit: Seconds until the demo gives up; `None` while a person may think.
    """

    session_id: str
    data_dir: Path
    model: ModelChoice
    message: str | None
    ask: bool
    kill: bool
    limit: float | None


def main(
    session: Annotated[
        str | None, typer.Option(help="Session id; one that exists goes on. New by default.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A real model (needs OPENAI_API_KEY), or 'scripted'."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve the refund without asking.")] = False,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Let the worker live.")] = False,
    data_dir: Annotated[Path, typer.Option(help="Folder of everything that is kept.")] = (
        DEFAULT_DATA
    ),
    model_script: Annotated[
        Path | None, typer.Option(help="Another script for the scripted model.")
    ] = None,
    message: Annotated[str | None, typer.Option(help="Say this instead.")] = None,
    limit: Annotated[
        float, typer.Option(help="Seconds until the demo gives up, when nobody is asked.")
    ] = 55.0,
) -> None:
    """Refund an order with an agent whose worker is killed in the middle."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 80)
    ask = not yes and sys.stdin.isatty() and sys.stdout.isatty()
    try:
        options = Options(
            session_id=session or time.strftime("support-%Y%m%d-%H%M%S"),
            data_dir=data_dir.absolute(),
            model=choose_model(model, model_script),
            message=message,
            ask=ask,
            kill=not no_kill,
            limit=None if ask else limit,
        )
        held = asyncio.run(Demo(console, options).run())
    except (DexAgentsError, ScriptError, ChildProcessError, OSError, EOFError) as error:
        _fail(console, str(error))
    except KeyboardInterrupt:
        _fail(console, "stopped; start it again with the same --session to go on")
    raise typer.Exit(0 if held else 1)


def choose_model(model: str | None, script: Path | None) -> ModelChoice:
    """Decide between the real provider and the scripted model.

    Raises:
        ScriptError: The script cannot be used.
        DexAgentsError: A real model is asked for, but there is no key.
    """
    real = model is not None and model != SCRIPTED
    if real and script is not None:
        raise DexAgentsError(f"--model {model} is a real model, so --model-script has no use")
    if real and not os.environ.get("OPENAI_API_KEY"):
        raise DexAgentsError(
            f"--model {model} asks for a real model, but OPENAI_API_KEY is not set; "
            "set it, or leave --model out to use the scripted model"
        )
    if real or (model is None and script is None and os.environ.get("OPENAI_API_KEY")):
        return ModelChoice(model, None)
    chosen = DEFAULT_SCRIPT if script is None else script.absolute()
    load_model_script(chosen)
    return ModelChoice(SCRIPTED, chosen)


class Demo:
    """One run of the demo.

    Args:
        console: Where it is shown.
        options: What it was asked to do.
    """

    def __init__(self, console: Console, options: Options) -> None:
        self._screen = Screen(console)
        self._options = options

    async def run(self) -> bool:
        """Run the demo and return whether everything it claims held.

        Raises:
            DexAgentsError: It did not end in time, or could not be run.
        """
        limit = asyncio.timeout(self._options.limit)
        try:
            async with limit:
                return await self._run()
        except TimeoutError as error:
            if not limit.expired():
                raise DexAgentsError(str(error)) from error
            raise DexAgentsError(
                f"the demo did not end within {self._options.limit:g} s, on a slow machine give it "
                f"more with --limit; output of its processes: {self._options.data_dir / 'logs'}"
            ) from error

    async def _run(self) -> bool:
        options, screen = self._options, self._screen
        screen.heading("Processes")
        async with DemoProcesses(options.data_dir, options.model) as processes:
            self._show_servers(processes)
            slow = SLOW_LOOK_UP_SECONDS if options.kill else LOOK_UP_SECONDS
            with screen.console.status("the worker loads the agents"):
                worker = await processes.start_worker(slow)
            screen.line("worker", f"process {worker.pid}")
            screen.line("client", f"process {os.getpid()}, this one")
            async with open_sessions(
                FLOW_TYPE, server_address=processes.engine.address, serve=False
            ) as app:
                sessions = app.sessions()
                before = await read_session(sessions, options.session_id)
                record = TurnRecord(options.session_id, before, worker, options.kill)
                return await self._turn(processes, sessions, record)

    async def _turn(
        self, processes: DemoProcesses, sessions: AgentSessionClient, record: TurnRecord
    ) -> bool:
        screen, session_id = self._screen, record.session_id
        address = processes.engine.address
        before = record.before
        requests_before = len(read_recorded_requests(processes.requests_log))
        steps_before = 0
        if before is not None:
            steps_before = len(await read_step_history(address, session_id))
        screen.heading(f"Session {session_id}, turn {record.turn_number}")
        if before is not None:
            screen.line("", f"[dim]{len(before.messages)} messages are stored from before[/]")
        said = self._options.message or (FIRST_MESSAGE if before is None else LATER_MESSAGE)
        if record.is_resumed:
            screen.line("", "[dim]the turn that was interrupted goes on[/]")
        else:
            screen.line("[bold]You[/]", escape(said))
        approve = self._ask_person if self._options.ask else None
        snapshot = await Turn(screen, sessions, processes, record, approve).play(said)
        steps = (await read_step_history(address, session_id))[steps_before:]
        shop = Shop(processes.shop_dir)
        screen.heading("Steps of this turn")
        self._show_agents(snapshot, record)
        screen.console.print(history_table(steps, screen.tool_names))
        self._show_refunds(shop)
        requests = None
        if self._options.model.script is not None:
            requests = requests_since(processes.requests_log, requests_before)
        return self._show_checks(check_turn(record, snapshot, steps, shop, requests))

    def _show_servers(self, processes: DemoProcesses) -> None:
        engine, model = processes.engine, self._options.model
        self._screen.line("engine", f"process {engine.process.pid} at {engine.address}")
        if processes.model_server is not None and model.script is not None:
            what = f"process {processes.model_server.pid}, scripted by {model.script.name}"
        else:
            what = f"{model.name or 'the default model'} of the provider"
        self._screen.line("model", escape(what))

    def _show_agents(self, snapshot: AgentSnapshot, record: TurnRecord) -> None:
        names: list[str] = []
        for message in snapshot.messages:
            is_new = message.turn_id == f"turn-{record.turn_number}" and message.agent_name
            if is_new and message.agent_name not in names[-1:]:
                names.append(message.agent_name)
        if names:
            self._screen.line("agents", escape(" → ".join(names)))

    def _show_refunds(self, shop: Shop) -> None:
        self._screen.heading("The shop's own log of refunds")
        refunds = refunds_of(self._options.session_id, shop)
        for refund in refunds:
            self._screen.line(
                str(refund["refund_id"]).replace("refund-", "no. "),
                f"{refund['amount']} euros for order {refund['order_id']} "
                f"[dim]key {escape(str(refund['key']))}[/]",
            )
        if not refunds:
            self._screen.line("", "no refund in this session")

    def _show_checks(self, checks: Sequence[Check]) -> bool:
        screen, options = self._screen, self._options
        screen.heading("What was checked")
        for check in checks:
            mark = "[green]✓[/]" if check.held else "[red]✗[/]"
            detail = f"\n[dim]{escape(check.detail)}[/]" if check.detail else ""
            screen.line(mark, f"{escape(check.claim)}{detail}")
        held = all(check.held for check in checks)
        if not held:
            logs = escape(str(options.data_dir / "logs"))
            screen.line("", f"[red]Not everything held.[/] Output of the processes: {logs}")
        screen.heading("Go on")
        screen.line("", "The processes end now, the session does not. Continue it with")
        folder = "" if options.data_dir == DEFAULT_DATA else f" --data-dir {options.data_dir}"
        command = f'make demo ARGS="--session {options.session_id}{folder}"'
        screen.console.print(f"    [bold]{escape(command)}[/]", soft_wrap=True)
        return held

    async def _ask_person(self, interrupt: AgentInterrupt) -> bool:
        return await self._screen.ask(f"Let {interrupt.tool_name} run?")


async def read_session(sessions: AgentSessionClient, session_id: str) -> SessionBefore | None:
    """Return what a session has stored; None when there is no such session."""
    try:
        snapshot = await sessions.get_agent_snapshot(session_id)
    except SessionNotFoundError:
        return None
    messages: list[AgentMessage] = []
    has_more = True
    while has_more:
        after = messages[-1].sequence if messages else 0
        page = await sessions.list_agent_messages(session_id, after)
        messages += page.messages
        has_more = page.has_more
    return SessionBefore(messages, snapshot.state)


def _fail(console: Console, reason: str) -> NoReturn:
    console.print(f"\n[red]The demo cannot go on:[/] {escape(reason)}", soft_wrap=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    typer.run(main)
