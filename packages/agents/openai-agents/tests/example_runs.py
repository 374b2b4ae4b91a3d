"""The examples of the documentation, and what a session of each must do, killed or not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dex import DexServiceError
from example_worker import EXAMPLES, FOLDER_VARIABLE, MODELS_VARIABLE, load_example

from dex_agents import AgentSnapshot
from dex_agents.testing import (
    AgentTestStack,
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


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        name: Its file, without the ending.
        said: What the user says, turn by turn.
        ends: How each turn ends: its answer, or the beginning of its error.
        bodies: How often each tool runs.
        answers: Approvals, by a word among the arguments.
        ends_if_unknown: How each turn ends when a write was lost in the moment it began.
    """

    name: str
    said: tuple[str, ...]
    ends: tuple[str, ...]
    bodies: Mapping[str, int] = field(default_factory=dict[str, int])
    answers: Mapping[str, bool] = field(default_factory=dict[str, bool])
    ends_if_unknown: tuple[str, ...] = ()


CASES = (
    Example(
        "hello",
        ("My chain squeaks.",),
        ("Clean it, dry it, and put one drop of oil on every link.",),
    ),
    Example(
        "conversation",
        ("I ride 28 mm tyres.", "How much air do they want?"),
        ("A good width for the road.", "Your 28 mm tyres want 6.4 bar."),
        {"tyre_pressure": 1},
    ),
    Example(
        "streaming",
        ("How many bicycles are there?",),
        ("There are 19: 12 in the north shed and 7 in the south one.",),
        {"count_bikes": 2},
    ),
    Example(
        "dynamic_instructions",
        ("When do you open?", "And on Sunday?"),
        ("Welcome! We open at nine.", "We are closed on Sundays."),
    ),
    Example(
        "lifecycle_hooks",
        ("Here is a wheel with 32 spokes.",),
        ("The wheel runs true.",),
        {"roll_wheel": 1},
    ),
    Example(
        "parallel_tools",
        ("I need a chain, a saddle and a bell.",),
        ("All three are set aside, 81.50 euros together.",),
        {"price_of": 3, "reserve": 3},
    ),
    Example(
        "handoffs",
        ("My brakes do not grip.", "And if the wheel is bent as well?"),
        ("New brakes take 1 day.", "Then it is 3 days."),
        {"repair_days": 2},
    ),
    Example(
        "handoff_filter",
        ("I am Ida, good morning.", "A poem about my bicycle, please."),
        (
            "Good morning, Ida! How is the tandem?",
            "Two wheels, two seats, one bell: you ride it very well.",
        ),
        {"customer_file": 1},
    ),
    Example(
        "agents_as_tools",
        ("Do you have a chain, and what is it?",),
        ("Yes: 4 chains are there, at 24 euros each.",),
        {"ask_stock": 1, "ask_price": 1},
    ),
    Example(
        "input_guardrail",
        ("Can you fix my car ?", "Then my bicycle, please."),
        ("InputGuardrailTripwireTriggered: ", "Gladly. What is wrong with it?"),
    ),
    Example(
        "output_guardrail",
        ("Will it last for ten years?", "For one year, at least?"),
        ("OutputGuardrailTripwireTriggered: ", "With some care it should."),
    ),
    Example(
        "tool_guardrails",
        ("Who owns bicycle 4711, and who owns my-bike?",),
        ("It is registered, the owner is not shown.",),
        {"registry": 1},
    ),
    Example(
        "human_in_the_loop",
        ("We need a bell, a motor and a golden saddle.",),
        ("Bell and motor are ordered. The golden saddle was not approved.",),
        {"order_part": 2},
        {"motor": True, "golden": False},
        ("I cannot tell whether everything is ordered. Please check.",),
    ),
    Example(
        "structured_output",
        ("My chain is worn out.",),
        ('{"parts":[{"name":"chain","euros":24.0}],"hours":0.5}',),
        {"catalogue": 1},
    ),
    Example(
        "stop_at_tool",
        ("I bring the green one.",),
        ("TICKET 12: ready on Friday",),
        {"find_bicycle": 1, "print_ticket": 1},
    ),
    Example(
        "tool_use_behavior",
        ("To the coast?", "Over the pass, then?"),
        ("You would get wet there.", "the pass: dry, go!"),
        {"weather": 2},
    ),
    Example(
        "mcp_stdio",
        ("Label the chains as winter stock.",),
        ("Four chains are labelled.",),
        {"count_parts": 1, "label_part": 1},
    ),
)


@dataclass(frozen=True)
class Place:
    """The beginning of a Step: everything before it is committed, nothing of it is done.

    Attributes:
        step: Step type and method.
        count: Which one of that type in the session, from 1.
    """

    step: str
    count: int

    def __str__(self) -> str:
        return f"{self.step}:{self.count}"


@dataclass
class Played:
    """What a session did.

    Attributes:
        ends: How each turn ended.
        requests: Bodies of all model requests.
        bodies: How often each tool ran.
        places: The beginnings of its Steps, repeated ones included, in order.
    """

    ends: tuple[str, ...]
    requests: list[dict[str, Any]]
    bodies: Counter[str]
    places: list[Place]


class ExampleStack:
    """An engine, a scripted model for each example, and a worker that serves all of them."""

    def __init__(
        self, stack: AgentTestStack, models: Mapping[str, RunningModelServer], folder: Path
    ) -> None:
        self.stack = stack
        self._models = models
        self._folder = folder
        self._calm: dict[str, Played] = {}

    async def calm(self, example: Example) -> Played:
        """Play an example without a kill, once."""
        if example.name not in self._calm:
            self._calm[example.name] = await self.play(example, f"{example.name}-calm")
        return self._calm[example.name]

    async def play(self, example: Example, session_id: str, kill: Place | None = None) -> Played:
        """Play a session of an example.

        Args:
            example: The example.
            session_id: A new session.
            kill: Where the worker dies, once.
        """
        wanted = self._folder / "kill.json"
        if kill is not None:
            wanted.write_text(json.dumps([session_id, kill.step, kill.count]))
        model = self._models[example.name]
        before = len(model.requests)
        ends: list[str] = []
        for number, text in enumerate(example.said, 1):
            await self._say(example, session_id, number, text)
            ends.append(await self._end_of_turn(example, session_id, number))
        awaited = "AwaitUserMessage.wait_for"
        arrivals = Counter({awaited: len(example.said)})
        if kill is not None:
            # Once more than without the kill, which counts for the place of rest as well.
            arrivals[kill.step] = (
                arrivals[kill.step] + 1 if kill.step == awaited else kill.count + 1
            )
        rests = {Place(step, count) for step, count in arrivals.items()}
        await wait_until(f"{session_id} to rest", lambda: rests <= {*self._places(session_id)})
        return Played(
            tuple(ends),
            [_without_cache_key(request.body) for request in model.requests[before:]],
            Counter(
                call.name
                for call in InvocationLog(self._folder / "bodies.log").entries()
                if call.details["session"] == session_id
            ),
            self._places(session_id),
        )

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

    def _places(self, session_id: str) -> list[Place]:
        counts: Counter[str] = Counter()
        places: list[Place] = []
        for arrival in InvocationLog(self._folder / "arrivals.log").entries():
            if arrival.details["session"] == session_id:
                counts[arrival.name] += 1
                places.append(Place(arrival.name, counts[arrival.name]))
        return places


def _without_cache_key(body: Mapping[str, Any]) -> dict[str, Any]:
    # The framework derives it from the session's id.
    return {name: value for name, value in body.items() if name != "prompt_cache_key"}


def check_killed(example: Example, calm: Played, killed: Played, place: Place) -> None:
    """Assert that a kill at a place changed nothing, but for what ran beside it.

    A repeatable call that was running in the killed worker runs again, with all model calls inside
    it; a write that may run once is not run again, and the model is told that it may have run.
    """
    begun, once = (Counter(each.step for each in played.places) for played in (killed, calm))
    assert begun[place.step] > once[place.step], "it began again"
    repeated = begun["CallTool.execute"] - once["CallTool.execute"]
    for tool, count in calm.bodies.items():
        assert killed.bodies[tool] <= count + repeated
    if killed.ends != calm.ends:
        assert killed.ends == example.ends_if_unknown
        assert _may_hide_a_write(calm.places, place), "no write was running"
        assert killed.bodies.total() <= calm.bodies.total()
        assert killed.requests[:-1] == calm.requests[:-1]
        assert "not known" in json.dumps(killed.requests[-1]["input"])
        return
    assert killed.bodies >= calm.bodies
    as_before, now = (Counter(map(json.dumps, played.requests)) for played in (calm, killed))
    assert set(now) == set(as_before)
    assert repeated or now == as_before


def _may_hide_a_write(places: Sequence[Place], place: Place) -> bool:
    """Whether a write that may run once is handed out in the round of Steps that a place is in."""
    at = places.index(place)
    models = [index for index, each in enumerate(places) if each.step == "RunModel.execute"]
    begin = max((index for index in models if index <= at), default=0)
    end = min((index for index in models if index > at), default=len(places))
    return any(each.step == "CallSingleAttemptTool.execute" for each in places[begin:end])


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
            )
        )
        await agents.start_worker()
        yield ExampleStack(agents, models, folder)
