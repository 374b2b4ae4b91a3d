"""What the core's own tests share: a runner made of functions, and a running session."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from dex import LongPollTimeoutError

from dex_agents import (
    AgentEvent,
    AgentEventType,
    AgentSessionClient,
    AgentSessionFlow,
    AgentSessionOptions,
    AgentSnapshot,
    AgentTurnContext,
    AgentTurnOutcome,
    AgentUsage,
    DeferredToolCall,
    DeferredToolExecution,
    FrameworkMessage,
    MessageRole,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionResult,
    ToolPolicy,
    TurnCompleted,
    describe_tool_call_outcome,
)
from dex_agents.local import SessionApp, open_sessions
from dex_agents.testing import create_engine, wait_for_agent_snapshot, wait_until

T = TypeVar("T")
ModelFunction = Callable[[AgentTurnContext], AgentTurnOutcome | Awaitable[AgentTurnOutcome]]
ToolFunction = Callable[
    [DeferredToolExecution], ToolExecutionResult | str | Awaitable[ToolExecutionResult | str]
]

ONE_CALL = AgentUsage(model_calls=1, input_tokens=10, output_tokens=5, total_tokens=15)


def user_message(text: str) -> FrameworkMessage:
    """Build a user message as this runner's framework would."""
    return FrameworkMessage(MessageRole.USER, json.dumps({"role": "user", "content": text}), text)


def answer(text: str, *earlier: FrameworkMessage) -> TurnCompleted:
    """End the turn with a text."""
    item = json.dumps({"role": "assistant", "content": text})
    return TurnCompleted((*earlier, FrameworkMessage(MessageRole.ASSISTANT, item, text)), ONE_CALL)


def tool_call(
    call_id: str,
    name: str = "look",
    effect: ToolEffect = ToolEffect.READ,
    arguments: str = "{}",
    requires_approval: bool | None = None,
) -> DeferredToolCall:
    """Ask for one tool."""
    return DeferredToolCall(call_id, name, arguments, ToolPolicy(effect, requires_approval))


def ask(*calls: DeferredToolCall, run_state: str = "paused") -> ToolCallsRequested:
    """Ask for tools."""
    return ToolCallsRequested(run_state, calls, ONE_CALL)


def outcomes(turn: AgentTurnContext) -> list[str]:
    """Return what the model reads about the calls of the turn, in model order."""
    records = sorted(turn.tool_calls.values(), key=lambda record: record.deferral_order)
    return [describe_tool_call_outcome(record) for record in records]


def echo(turn: AgentTurnContext) -> TurnCompleted:
    """Answer with the user's text."""
    return answer(f"echo {turn.messages[-1].text}")


class FunctionRunner:
    """A runner whose model and tools are functions of the test.

    Attributes:
        turns: Context of every model call that was made.
        executions: Every tool call that was run.
        notes: Every text that `build_user_message` got.
    """

    def __init__(
        self,
        model: ModelFunction = echo,
        tool: ToolFunction = lambda call: f"{call.tool_call.tool_name} ran",
        build: Callable[[str], FrameworkMessage] = user_message,
    ) -> None:
        self.model = model
        self.tool = tool
        self.build = build
        self.turns: list[AgentTurnContext] = []
        self.executions: list[DeferredToolExecution] = []
        self.texts: list[str] = []

    def build_user_message(self, text: str) -> FrameworkMessage:
        self.texts.append(text)
        return self.build(text)

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        self.turns.append(turn)
        outcome = self.model(turn)
        return await outcome if inspect.isawaitable(outcome) else outcome

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        self.executions.append(call)
        result = self.tool(call)
        if inspect.isawaitable(result):
            result = await result
        return ToolExecutionResult(result) if isinstance(result, str) else cast(Any, result)


class RunningSession:
    """One session under test.

    Attributes:
        app: The open application.
        client: Client of the session's Flow.
        session_id: Its id.
    """

    def __init__(self, app: SessionApp, flow: AgentSessionFlow, session_id: str) -> None:
        self.app = app
        self.flow = flow
        self.client: AgentSessionClient = app.sessions(flow)
        self.session_id = session_id

    async def start(self, text: str = "") -> None:
        await self.client.start_session(self.session_id, text)

    async def send(self, text: str) -> None:
        assert await self.client.send_user_message(self.session_id, text)

    async def snapshot(self) -> AgentSnapshot:
        return await self.client.get_agent_snapshot(self.session_id)

    async def until(self, description: str, probe: Callable[[AgentSnapshot], T | None]) -> T:
        """Wait until `probe` of a snapshot is true and return it."""
        return await wait_for_agent_snapshot(
            self.client, self.session_id, probe, description=description, interval=0.02
        )

    async def turn_ended(self, number: int) -> AgentSnapshot:
        """Wait until the session has ended so many turns and waits for the next message."""
        return await self.until(
            f"the end of turn {number}",
            lambda s: (
                s if s.state and s.state.turn_count >= number and not s.state.turn_id else None
            ),
        )

    async def interrupts(self, count: int = 1) -> Sequence[Any]:
        """Wait for so many pending questions."""
        return await self.until(
            f"{count} pending approvals",
            lambda s: s.pending_interrupts if len(s.pending_interrupts) == count else None,
        )

    async def resolve(self, tool_call_id: str, approved: bool, message: str | None = None) -> bool:
        """Answer the pending question of one call."""
        interrupt = await self.until(
            f"the approval of {tool_call_id}",
            lambda s: next(
                (i for i in s.pending_interrupts if i.tool_call_id == tool_call_id), None
            ),
        )
        return await self.client.resolve_interrupt(
            self.session_id, interrupt.interrupt_id, approved=approved, rejection_message=message
        )

    async def events_until(self, last: AgentEventType, turn_id: str) -> list[AgentEvent]:
        """Read the live events from the beginning until one of this type and turn."""
        token = ""
        events: list[AgentEvent] = []

        async def read() -> bool:
            nonlocal token
            try:
                message = await self.client.read_agent_event(
                    self.session_id, token, timedelta(seconds=1)
                )
            except LongPollTimeoutError:
                return False
            token = message.resume_token
            events.append(message.value)
            return message.value.type is last and message.value.turn_id == turn_id

        await wait_until(f"event {last} of {turn_id}", read, interval=0)
        return events


@asynccontextmanager
async def running_sessions(
    data_dir: Path, *flows: AgentSessionFlow, **arguments: Any
) -> AsyncGenerator[SessionApp]:
    """Open the flows on the engine under test: the embedded one, or the one `DEXCLI` names."""
    async with AsyncExitStack() as stack:
        if os.environ.get("DEXCLI", "").strip():
            engine = create_engine(data_dir / "engine", data_dir / "logs")
            await engine.start()
            stack.push_async_callback(engine.stop)
            arguments["server_address"] = engine.address
        else:
            arguments["data_dir"] = data_dir
        yield await stack.enter_async_context(open_sessions(flows, **arguments))


@asynccontextmanager
async def running_session(
    data_dir: Path,
    runner: FunctionRunner,
    options: AgentSessionOptions | None = None,
    session_id: str = "session-1",
    **arguments: Any,
) -> AsyncGenerator[RunningSession]:
    """Open one flow with one session, not started yet."""
    flow = AgentSessionFlow(runner, flow_type="Tested", options=options)
    async with running_sessions(data_dir, flow, **arguments) as app:
        yield RunningSession(app, flow, session_id)
