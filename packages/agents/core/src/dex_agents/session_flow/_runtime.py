"""What all Steps of one session Flow share."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from dex import AsyncContext, Context, Step, StepDecision, StepOptions, Stream

from dex_agents._session.cache import SessionCache
from dex_agents.events import AgentEventWriter
from dex_agents.options import AgentSessionOptions
from dex_agents.runner import AgentFrameworkRunner
from dex_agents.session_flow._loop_watch import LoopWatch
from dex_agents.session_flow._options import BASE_OPTIONS
from dex_agents.values import AgentEvent, AgentEventType

if TYPE_CHECKING:
    from dex_agents.session_flow._movements import Movements

InputT = TypeVar("InputT")


def utc_now() -> datetime:
    """Return the worker's clock."""
    return datetime.now(UTC)


@dataclass
class SessionRuntime:
    """Everything a Step needs besides its context.

    Attributes:
        runner: The framework's runner.
        options: Options of the Flow.
        events: The Flow's event Stream.
        cache: What this worker keeps of its sessions.
        watch: Tells in the log which call blocks the event loop.
        movements: Builds the movements to other Steps; set once all Steps are known.
    """

    runner: AgentFrameworkRunner
    options: AgentSessionOptions
    events: Stream[AgentEvent]
    cache: SessionCache
    watch: LoopWatch = field(default_factory=LoopWatch)
    movements: Movements = field(init=False)

    @contextmanager
    def event_writer(self, context: AsyncContext, turn: str) -> Generator[AgentEventWriter]:
        """Give a writer whose last events leave before the Step returns."""

        def write(event: AgentEvent) -> None:
            self.events.write(context, event)

        writer = AgentEventWriter(
            write,
            turn_id=turn,
            step_execution_id=context.step_execution_id,
            attempt=context.attempt,
        )
        try:
            yield writer
        finally:
            writer.close()

    def write_committed_event(
        self, context: Context, event_type: AgentEventType, turn: str, payload: dict[str, object]
    ) -> None:
        """Write an event from a `wait_for`, where what it tells is already committed."""
        self.events.write(
            context,
            AgentEvent(event_type, turn, context.step_execution_id, context.attempt, payload),
        )

    def trim_cache(self) -> None:
        """Drop what the cache holds beyond its bound."""
        self.cache.trim(time.monotonic())


class AsyncStep(Step[InputT]):
    """A Step with an asynchronous `execute`."""

    # The SDK accepts a coroutine here, but its base class declares a plain function.
    @abstractmethod
    async def execute(  # pyright: ignore[reportIncompatibleMethodOverride] - see above
        self, context: AsyncContext, input: InputT
    ) -> StepDecision: ...


class SessionStep(AsyncStep[InputT]):
    """A Step of a session Flow.

    Args:
        session: What all Steps of the Flow share.
    """

    def __init__(self, session: SessionRuntime) -> None:
        self.session = session

    def get_step_options(self) -> StepOptions:
        """Return the options of a movement that brings none; ours always bring their own."""
        return BASE_OPTIONS
