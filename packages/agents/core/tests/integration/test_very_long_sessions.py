"""A session of 10,000 messages: what a cold worker loads, and what a warm one and a reader pay."""

from __future__ import annotations

import base64
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from byte_meter import ByteMeter, metered
from dex import Codec, Value
from session_harness import (
    FunctionRunner,
    RunningSession,
    answer,
    running_session,
    running_sessions,
)

from dex_agents import (
    AgentMessage,
    AgentSessionFlow,
    AgentSnapshot,
    AgentTurnContext,
    AgentTurnOutcome,
    FrameworkMessage,
    MessageRole,
    agent_codecs,
)
from dex_agents.local import open_sessions
from dex_agents.testing import (
    EXECUTE_COMPLETED_EVENT,
    read_step_history,
    wait_for_agent_snapshot,
    wait_until,
)

#: More than a snapshot shows and than the newest 256 kB hold: what every session loads anyway.
FEW_MESSAGES = 260
TEXT_BYTES = 2_000
TURN_MESSAGES = 1_250
PAGE_AFTER = 100
#: What may differ: the sizes of up to 699 messages, which travel with each task of a turn, a sealed
#: block of 500 for a reader, and pings.
SLACK_BYTES = 60_000


def incompressible(sequence: int) -> str:
    """Return the text of one stored message."""
    return base64.b64encode(random.Random(sequence).randbytes(TEXT_BYTES * 3 // 4)).decode()


def seeding(turn: AgentTurnContext) -> AgentTurnOutcome:
    """Store as many messages as the user asks for; to any other message say what was seen."""
    text = turn.messages[-1].text
    if not text.isdecimal():
        noise = [message for message in turn.messages if len(message.text) == TEXT_BYTES]
        # One in a hundred, because to make them all again takes long.
        whole = all(m.text == incompressible(m.sequence) for m in noise[::100])
        numbers = [message.sequence for message in turn.messages]
        return answer(f"{whole} {numbers == list(range(1, len(numbers) + 1))} {len(numbers)}")
    first = len(turn.messages) + 1
    items = (
        FrameworkMessage(MessageRole.ASSISTANT, "{}", incompressible(sequence))
        for sequence in range(first, first + int(text) - 2)
    )
    return answer("end", *items)


async def turn_ended(session: RunningSession, number: int) -> AgentSnapshot:
    """Wait for the end of a turn without looking all the time: a look costs 200 messages."""
    return await wait_for_agent_snapshot(
        session.client,
        session.session_id,
        lambda s: s if s.state and s.state.turn_count >= number and not s.state.turn_id else None,
        description=f"the end of turn {number}",
        interval=0.1,
    )


async def seed(data_dir: Path, count: int) -> None:
    """Make a session of so many messages in as few turns as the limits allow."""
    async with running_session(data_dir, FunctionRunner(seeding)) as session:
        await session.start()
        snapshot = await turn_ended(session, 0)
        for turn, left in enumerate(range(count, 0, -TURN_MESSAGES), 1):
            await session.send(str(min(left, TURN_MESSAGES)))
            snapshot = await turn_ended(session, turn)
        assert snapshot.state is not None
        assert snapshot.state.message_count == count


class CountingCodec:
    """Counts the messages that were decoded, and their bytes."""

    def __init__(self) -> None:
        self._inner: Codec[AgentMessage] = agent_codecs()[AgentMessage]
        self.type_name = self._inner.type_name
        self.wire_kind = self._inner.wire_kind
        self.decoded = 0

    def encode(self, value: AgentMessage) -> Value:
        return self._inner.encode(value)

    def decode(self, value: Value) -> AgentMessage:
        self.decoded += 1
        return self._inner.decode(value)


@dataclass(frozen=True)
class Cost:
    """What one thing has cost.

    Attributes:
        messages: Stored messages that were decoded by a worker.
        task_bytes: Bytes that the engine sent to the workers.
        reply_bytes: Bytes that it sent to the client.
    """

    messages: int
    task_bytes: int
    reply_bytes: int


@dataclass
class Served:
    """A session served by workers whose traffic is counted.

    Attributes:
        session: The session.
        runners: Runner of each worker.
        codecs: Codec of each worker.
        to_workers: Meter between engine and workers.
        to_client: Meter between engine and client.
    """

    session: RunningSession
    runners: list[FunctionRunner]
    codecs: list[CountingCodec]
    to_workers: ByteMeter
    to_client: ByteMeter

    def cost(self) -> Cost:
        """Return everything so far."""
        return Cost(
            sum(codec.decoded for codec in self.codecs),
            self.to_workers.from_engine,
            self.to_client.from_engine,
        )

    def since(self, before: Cost) -> Cost:
        """Return what was added to `before`."""
        now = self.cost()
        return Cost(
            now.messages - before.messages,
            now.task_bytes - before.task_bytes,
            now.reply_bytes - before.reply_bytes,
        )

    async def model_steps(self) -> int:
        """Return how many model Steps have ended, hops included."""
        history = await read_step_history(self.session.app.server_address, self.session.session_id)
        return sum(
            (entry.step_type, entry.event_type) == ("RunModel", EXECUTE_COMPLETED_EVENT)
            for entry in history
        )

    async def say(self, text: str) -> str:
        """Run one turn and return its answer."""
        number = (await self.session.snapshot()).state
        assert number is not None
        await self.session.send(text)
        ended = await turn_ended(self.session, number.turn_count + 1)
        assert ended.state is not None
        assert ended.state.last_turn_error is None
        return ended.messages[-1].text

    async def measure_turn(self, text: str) -> Cost:
        """Run one turn that nobody looks at, and return what it cost."""
        before, calls = self.cost(), len(self.runners[0].turns)
        await self.session.send(text)
        await wait_until("the model call", lambda: len(self.runners[0].turns) > calls)
        quiet = self.to_workers.from_engine

        def is_quiet() -> bool:
            nonlocal quiet
            was, quiet = quiet, self.to_workers.from_engine
            return was == quiet

        await wait_until("the end of the turn", is_quiet, interval=0.5)
        return self.since(before)

    async def measure_reads(self) -> tuple[Cost, Cost]:
        """Return the cost of a snapshot by a client that knows nothing, and of a page."""
        client = self.session.app.sessions(self.session.flow)
        before = self.cost()
        snapshot = await client.get_agent_snapshot(self.session.session_id)
        looked = self.since(before)
        assert len(snapshot.messages) == 200
        before = self.cost()
        page = await client.list_agent_messages(self.session.session_id, PAGE_AFTER, 50)
        assert [m.sequence for m in page.messages] == list(range(PAGE_AFTER + 1, PAGE_AFTER + 51))
        return looked, self.since(before)


@asynccontextmanager
async def served(data_dir: Path, workers: int) -> AsyncGenerator[Served]:
    """Serve the session of a data folder by cold workers."""
    runners = [FunctionRunner(seeding) for _ in range(workers)]
    codecs = [CountingCodec() for _ in range(workers)]
    flows = [AgentSessionFlow(runner, flow_type="Tested") for runner in runners]
    client_flow = AgentSessionFlow(FunctionRunner(), flow_type="Tested")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            running_sessions(data_dir, client_flow, serve=False)
        )
        to_workers = await stack.enter_async_context(metered(engine.server_address))
        to_client = await stack.enter_async_context(metered(engine.server_address))
        for flow, codec in zip(flows, codecs, strict=True):
            await stack.enter_async_context(
                open_sessions(
                    flow,
                    server_address=to_workers.address,
                    connect=False,
                    codecs={AgentMessage: codec},
                )
            )
        app = await stack.enter_async_context(
            open_sessions(client_flow, server_address=to_client.address, serve=False)
        )
        session = RunningSession(app, client_flow, "session-1")
        yield Served(session, runners, codecs, to_workers, to_client)


async def measure(data_dir: Path) -> tuple[Cost, Cost, Cost]:
    """Return the cost of a warm turn, of a snapshot by a new client, and of a page."""
    async with served(data_dir, 1) as one:
        await one.say("cold")
        return (await one.measure_turn("warm"), *await one.measure_reads())


@pytest.mark.requirement("CORE-COST-11", "CORE-COST-18")
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(2_500, id="short"),
        pytest.param(10_000, id="full", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
async def test_a_very_long_session_loads_in_parts_once_and_afterwards_costs_what_a_short_one_does(
    tmp_path: Path, count: int
) -> None:
    """10,000 messages of 2 kB need seven tasks of 3 MB each, on one cold worker or on three."""
    # Tasks that it takes to carry the history at 3 MB each.
    ranges = count * TEXT_BYTES // 3_000_000
    few, many = tmp_path / "few", tmp_path / "many"
    await seed(few, FEW_MESSAGES)
    cheap = await measure(few)
    await seed(many, count)

    async with served(many, 1) as one:
        before, loaded = await one.model_steps(), one.cost()
        assert await one.say("cold") == f"True True {count + 1}"
        hops = await one.model_steps() - before
        cold = one.since(loaded)
        assert ranges <= hops <= 3 * (ranges + 1)
        assert len(one.runners[0].turns) == 1
        assert cold.task_bytes >= count * TEXT_BYTES
        costs = (await one.measure_turn("warm"), *await one.measure_reads())
        assert await one.model_steps() == before + hops + 1

    for what, dear, expected in zip(("turn", "snapshot", "page"), costs, cheap, strict=True):
        print(f"{what}: {expected} with {FEW_MESSAGES} messages, {dear} with {count}")
        assert dear.messages <= expected.messages + 1, what
        assert dear.task_bytes <= expected.task_bytes + SLACK_BYTES, what
        assert dear.reply_bytes <= expected.reply_bytes + SLACK_BYTES, what

    async with served(many, 3) as three:
        before = await three.model_steps()
        assert await three.say("cold again") == f"True True {count + 5}"
        over_three = await three.model_steps() - before
        assert ranges <= over_three <= 3 * (ranges + 1)
        assert sum(len(runner.turns) for runner in three.runners) == 1
    print(f"model Steps of a cold turn: {hops} on one worker, {over_three} on three")
