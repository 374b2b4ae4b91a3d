"""What the demo shows while a turn runs, readable in 80 columns."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dex_agents import AgentEvent, AgentEventType, AgentInterrupt, ToolCallStatus
from dex_agents.testing import (
    EXECUTE_COMPLETED_EVENT,
    EXECUTE_FAILED_EVENT,
    StepHistoryEntry,
    WaitTimeoutError,
    wait_until,
)

MARKS = {
    ToolCallStatus.SUCCEEDED: "[green]✓[/]",
    ToolCallStatus.REJECTED: "[yellow]–[/]",
    ToolCallStatus.FAILED: "[red]✗[/]",
    ToolCallStatus.OUTCOME_UNKNOWN: "[red]?[/]",
}
LABEL_WIDTH = 9


class Screen:
    """Writes events as they come; text of the model is shown piece by piece."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seen: list[AgentEvent] = []
        self.tool_names: dict[str, str] = {}
        self._effects: dict[str, str] = {}
        self._source: tuple[str, str, int] | None = None
        self._column = 0
        self._line = ""

    def heading(self, text: str) -> None:
        """Begin a part of the demo."""
        self._end_stream()
        self.console.print()
        self.console.rule(f"[bold]{escape(text)}[/]", align="left")

    def line(self, label: str, markup: str = "") -> None:
        """Write a line under a short label; what does not fit goes on below the text."""
        self._end_stream()
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=LABEL_WIDTH, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(f"  {label}", markup)
        self.console.print(grid)

    def event(self, event: AgentEvent) -> None:
        """Show one live event."""
        payload = event.payload
        match event.type:
            case AgentEventType.TEXT_DELTA:
                self._stream(event, "Agent", str(payload["text"]), "")
            case AgentEventType.REASONING_DELTA:
                self._stream(event, "thinks", str(payload["text"]), "dim italic")
            case AgentEventType.TOOL_CALL_DEFERRED:
                call_id = str(payload["tool_call_id"])
                self.tool_names[call_id] = str(payload["tool_name"])
                self._effects[call_id] = str(payload["effect"])
            case AgentEventType.TOOL_CALL_STARTED:
                attempt = f" [dim](attempt {event.attempt})[/]" if event.attempt > 1 else ""
                self._tool("[cyan]→[/]", event, f"running{attempt}")
            case AgentEventType.TOOL_CALL_FINISHED:
                status = ToolCallStatus(str(payload["status"]))
                self._tool(MARKS.get(status, "·"), event, status.value)
            case _:
                pass
        self.seen.append(event)

    async def wait_for(self, matches: Callable[[AgentEvent], bool]) -> None:
        """Wait a moment until an event has been shown, so that lines come in their real order.

        Events are best effort, so the wait is short and ends in any case.
        """
        try:
            await wait_until("an event", lambda: any(map(matches, self.seen)), timeout=2)
        except WaitTimeoutError:
            await asyncio.sleep(0)

    def question(self, interrupt: AgentInterrupt) -> None:
        """Show a call that waits for a person."""
        self.line(
            "[yellow]?[/]",
            f"[bold]{escape(interrupt.tool_name)}[/] [dim]{interrupt.effect.value}[/] asks to run "
            f"with {escape(interrupt.arguments)}",
        )

    async def ask(self, question: str) -> bool:
        """Ask a person and wait for y or n, while everything else goes on."""
        self._end_stream()
        while True:
            self.console.print(f"{' ' * (LABEL_WIDTH + 1)}{question} [bold]\\[y/n][/]: ", end="")
            answer = (await _read_line()).strip().lower()
            if answer in ("y", "yes"):
                return True
            if answer in ("n", "no"):
                return False

    def has_shown(self, text: str) -> bool:
        """Whether a text of the model was streamed."""
        pieces = (
            str(event.payload["text"])
            for event in self.seen
            if event.type is AgentEventType.TEXT_DELTA
        )
        return text in "".join(pieces)

    def _stream(self, event: AgentEvent, label: str, text: str, style: str) -> None:
        source = (event.step_execution_id, label, event.attempt)
        if self._source != source:
            self._end_stream()
            shown = f"[bold]{label}[/]" if not style else f"[dim]{label}[/]"
            self.console.print(f"  {shown}{' ' * (LABEL_WIDTH - len(label) - 1)}", end="")
            self._source = source
            self._column = LABEL_WIDTH + 1
        for word in _words(text):
            self._write_word(word, style)

    def _write_word(self, word: str, style: str) -> None:
        """Write one word or space, on the next line when this one is full."""
        if self._column + len(word) > self.console.width and self._column > LABEL_WIDTH + 1:
            self.console.print()
            self.console.print(" " * (LABEL_WIDTH + 1), end="")
            self._column = LABEL_WIDTH + 1
            word = word.lstrip(" ")
        self.console.print(Text(word, style=style), end="", soft_wrap=True)
        self._column += len(word)

    def _end_stream(self) -> None:
        if self._source is not None:
            self.console.print()
            self._source = None

    def _tool(self, mark: str, event: AgentEvent, status: str) -> None:
        effect = self._effects.get(str(event.payload["tool_call_id"]), "")
        name = escape(f"{event.payload['tool_name']!s:<14}")
        self.line(mark, f"[bold]{name}[/] [dim]{effect:<21}[/]{status}")


def history_table(entries: Iterable[StepHistoryEntry], tool_names: dict[str, str]) -> Table:
    """Build the table of the Steps that ended, with how many attempts each took."""
    table = Table("", "Step", "tool", "attempts", box=None, padding=(0, 2, 0, 0))
    shown = (
        entry
        for entry in entries
        if entry.event_type in (EXECUTE_COMPLETED_EVENT, EXECUTE_FAILED_EVENT)
    )
    for number, entry in enumerate(shown, 1):
        attempts = str(entry.final_attempt)
        if entry.final_attempt > 1:
            attempts = f"[bold yellow]{attempts}[/]  ← the first one was killed"
        if entry.event_type == EXECUTE_FAILED_EVENT:
            attempts += "  [red]failed[/]"
        tool = tool_names.get(entry.step_input, "")
        table.add_row(f"  {number}", entry.step_type, escape(tool), attempts)
    return table


async def _read_line() -> str:
    """Read a line of the terminal without a thread, which Ctrl-C could not end.

    Raises:
        EOFError: The terminal was closed.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    line = sys.stdin.readline()
    if not line:
        raise EOFError("the terminal was closed before the question was answered")
    return line


def _words(text: str) -> Iterable[str]:
    """Cut a text before every space, so that a line can break there."""
    start = 0
    for position, character in enumerate(text):
        if character == " " and position > start:
            yield text[start:position]
            start = position
    yield text[start:]
