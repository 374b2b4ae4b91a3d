"""The examples of the documentation as sessions, in a worker and an engine that a test may kill."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from dex import DexServiceError
from example_cases import CASES, Example
from example_kills import Kills, Strike
from example_places import Place, Played
from example_worker import EXAMPLES, FOLDER_VARIABLE, MODELS_VARIABLE, load_example

from dex_agents import AgentSnapshot
from dex_agents.testing import (
    AgentTestStack,
    Invocation,
    InvocationLog,
    wait_for_agent_snapshot,
    wait_until,
)
from dex_agents_testkit.model_server import (
    RunningModelServer,
    load_model_script,
    serve_model_script,
)

TESTS = Path(__file__).resolve().parent
#: The last thing that a session at rest has done.
_AT_REST = "AwaitUserMessage.wait_for ends"


class ExampleStack:
    """An engine, a scripted model for each example, and a worker that serves all of them."""

    def __init__(
        self, stack: AgentTestStack, models: Mapping[str, RunningModelServer], folder: Path
    ) -> None:
        self.stack = stack
        self._models = models
        self._folder = folder
        self._kills = Kills(stack, folder)
        self._calm: dict[str, Played] = {}
        self._played = 0

    async def calm(self, example: Example) -> Played:
        """Play an example without a kill, once."""
        if example.name not in self._calm:
            self._calm[example.name] = await self.play(example)
        return self._calm[example.name]

    async def play(self, example: Example, kill: Place | None = None) -> Played:
        """Play a new session of an example.

        Args:
            example: The example.
            kill: Where a process dies, once.
        """
        self._played += 1
        session_id = f"{example.name}-{self._played}"
        model = self._models[example.name]
        before, mark = len(model.requests), self._kills.engine_mark()
        async with self._kills.at(kill, session_id) as strike:
            ends: list[str] = []
            for number, text in enumerate(example.said, 1):
                await self._say(example, session_id, number, text)
                ends.append(await self._end_of_turn(example, session_id, number))
            await wait_until(
                f"{session_id} to rest",
                lambda: self._is_at_rest(session_id, kill, strike),
                timeout=120,
            )
        last = await wait_for_agent_snapshot(
            self.stack.sessions(load_example(example.name).flow), session_id, lambda found: found
        )
        return Played(
            tuple(ends),
            [_without_cache_key(request.body) for request in model.requests[before:]],
            Counter(
                call.name
                for call in InvocationLog(self._folder / "bodies.log").entries()
                if call.details["session"] == session_id
            ),
            [
                (message.turn_id, message.role, message.text, message.framework_item)
                for message in last.messages
            ],
            last.usage,
            _counted(self._arrivals(session_id)),
            self._kills.engine_places(mark),
        )

    def _is_at_rest(self, session_id: str, kill: Place | None, strike: Strike) -> bool:
        if not strike.has_struck:
            return False
        arrivals = self._arrivals(session_id)
        if not arrivals or arrivals[-1].name != _AT_REST:
            return False
        # What a worker did in its last moment is done again, unless the engine had it already.
        is_lost = kill is not None and not kill.is_of_engine
        return not is_lost or arrivals[-1].process_id != strike.killed_worker

    async def _say(self, example: Example, session_id: str, number: int, text: str) -> None:
        sessions = self.stack.sessions(load_example(example.name).flow)
        message_id = f"{session_id}-{number}"

        async def said() -> bool:
            if number == 1:
                await sessions.start_session(session_id, text, message_id=message_id)
            else:
                await sessions.send_user_message(session_id, text, message_id=message_id)
            return True

        await self._until_answered("a message to be taken", said)

    async def _end_of_turn(self, example: Example, session_id: str, number: int) -> str:
        sessions = self.stack.sessions(load_example(example.name).flow)

        def ended_or_asks(snapshot: AgentSnapshot) -> AgentSnapshot | None:
            is_over = snapshot.state is not None and snapshot.state.turn_count >= number
            return snapshot if is_over or snapshot.pending_interrupts else None

        while True:
            snapshot = await wait_for_agent_snapshot(
                sessions, session_id, ended_or_asks, description=f"turn {number}", timeout=120
            )
            state = snapshot.state
            if state is not None and state.turn_count >= number:
                return state.last_turn_error or snapshot.messages[-1].text
            for interrupt in snapshot.pending_interrupts:
                approved = next(
                    answer
                    for word, answer in example.answers.items()
                    if word in interrupt.arguments
                )

                async def answered(
                    interrupt_id: str = interrupt.interrupt_id, approved: bool = approved
                ) -> bool:
                    await sessions.resolve_interrupt(session_id, interrupt_id, approved=approved)
                    return True

                await self._until_answered("an approval to be taken", answered)

    async def _until_answered(self, what: str, call: Any) -> None:
        """Make a call until a worker has answered it: it may be killed meanwhile."""
        await wait_until(
            what,
            lambda: asyncio.wait_for(call(), 10),
            timeout=120,
            ignore=(DexServiceError, TimeoutError),
        )

    def _arrivals(self, session_id: str) -> list[Invocation]:
        return [
            arrival
            for arrival in InvocationLog(self._folder / "arrivals.log").entries()
            if arrival.details["session"] == session_id
        ]


def _counted(arrivals: list[Invocation]) -> list[Place]:
    counts: Counter[str] = Counter()
    places: list[Place] = []
    for arrival in arrivals:
        counts[arrival.name] += 1
        places.append(Place(arrival.name, counts[arrival.name]))
    return places


def _without_cache_key(body: Mapping[str, Any]) -> dict[str, Any]:
    # The framework derives it from the session's id.
    return {name: value for name, value in body.items() if name != "prompt_cache_key"}


@asynccontextmanager
async def example_stack(folder: Path) -> AsyncGenerator[ExampleStack]:
    """Open everything that the examples need."""
    async with AsyncExitStack() as stack:
        models = {
            example.name: await stack.enter_async_context(
                serve_model_script(load_model_script(EXAMPLES / "scripts" / f"{example.name}.json"))
            )
            for example in CASES
        }
        agents = await stack.enter_async_context(
            AgentTestStack(
                folder / "stack",
                [load_example(example.name).flow for example in CASES],
                "example_worker",
                worker_cwd=TESTS,
                worker_env={
                    FOLDER_VARIABLE: str(folder),
                    MODELS_VARIABLE: json.dumps({n: m.base_url for n, m in models.items()}),
                    "OPENAI_AGENTS_DISABLE_TRACING": "1",
                },
                engine_env=Kills.engine_env(folder),
            )
        )
        await agents.start_worker()
        yield ExampleStack(agents, models, folder)
