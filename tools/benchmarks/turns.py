"""Runs turns against a running engine and says what they cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from dex import (
    AsyncClient,
    BlobCacheConfig,
    ClientOptions,
    Registry,
    WorkerTarget,
    open_blob_cache,
)

from dex_agents import AgentEventType
from dex_agents.local import open_sessions
from tools.benchmarks.flows import DONE, MESSAGE, SESSION_FLOW, BareFlow
from tools.benchmarks.layout import Layout
from tools.errors import ToolError

_WAIT = timedelta(seconds=60)

Drive = Callable[[str, int], Coroutine[None, None, list[float]]]
"""Runs some turns of a session one after the other; returns the seconds of each."""


@dataclass(frozen=True)
class Cost:
    """What turns cost.

    Attributes:
        turns: How many there were.
        seconds: From the first to the last.
        latencies: Seconds of each, sorted.
        cpu: CPU seconds by process.
    """

    turns: int
    seconds: float
    latencies: tuple[float, ...]
    cpu: dict[str, float]

    @property
    def per_second(self) -> float:
        return self.turns / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU of all processes together, in ms a turn."""
        return sum(self.cpu.values()) / self.turns * 1e3

    def percentile_ms(self, share: float) -> float:
        return self.latencies[min(int(len(self.latencies) * share), self.turns - 1)] * 1e3


class Client:
    """Both kinds of turns, sent by this process.

    Args:
        layout: Where to.
        folder: A folder for what the SDK caches.
    """

    def __init__(self, layout: Layout, folder: Path) -> None:
        self._layout = layout
        self._folder = folder
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Client:
        address = self._layout.address
        opened = open_sessions(SESSION_FLOW, server_address=address, serve=False)
        self._sessions = (await self._stack.enter_async_context(opened)).sessions()
        cache = open_blob_cache(BlobCacheConfig(str(self._folder / "client-blobs"), 16_000_000))
        self._stack.callback(cache.close)
        self._flow = BareFlow()
        options = ClientOptions(server_address=address, worker_target=WorkerTarget(pull=True))
        registry = Registry([self._flow], allow_async_handlers=True)
        client = AsyncClient(registry, cache, options)
        self._client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def session(self, name: str, turns: int) -> list[float]:
        """Turns of a new agent session; every live event is read, as a user interface would."""
        return [seconds async for seconds in self.session_turns(name, turns)]

    async def session_turns(self, name: str, turns: int) -> AsyncGenerator[float]:
        """The same, one after the other: the seconds of each turn as soon as it is over."""
        token = ""
        for number in range(1, turns + 1):
            began = time.perf_counter()
            if number == 1:
                await self._sessions.start_session(name, MESSAGE)
            else:
                await self._sessions.send_user_message(name, MESSAGE)
            is_over = False
            while not is_over:
                message = await self._sessions.read_agent_event(name, token, _WAIT)
                token, event = message.resume_token, message.value
                if event.type is AgentEventType.TURN_FAILED:
                    raise ToolError(f"turn {number} of {name} failed: {event.payload}")
                is_over = (event.type, event.turn_id) == (
                    AgentEventType.TURN_COMPLETED,
                    f"turn-{number}",
                )
            yield time.perf_counter() - began

    async def bare(self, name: str, turns: int) -> list[float]:
        """Turns of a new bare Flow."""
        await self._client.start_flow(self._flow, name, 0)
        seconds: list[float] = []
        token = ""
        for _ in range(turns):
            began = time.perf_counter()
            await self._client.invoke_rpc(self._flow.send, name, MESSAGE)
            token = (await self._client.read_stream(name, DONE, token, _WAIT)).resume_token
            seconds.append(time.perf_counter() - began)
        return seconds


async def measure(layout: Layout, drive: Drive, name: str, sessions: int, turns: int) -> Cost:
    """Runs turns of some sessions side by side, after a few that warm everything up."""
    await asyncio.gather(*(drive(f"{name}-warm-{n}", 2) for n in range(min(sessions, 4))))
    before = await layout.cpu()
    began = time.perf_counter()
    found = await asyncio.gather(*(drive(f"{name}-{n}", turns) for n in range(sessions)))
    seconds = time.perf_counter() - began
    after = await layout.cpu()
    return Cost(
        sessions * turns,
        seconds,
        tuple(sorted(latency for each in found for latency in each)),
        {process: used - before[process] for process, used in after.items()},
    )


async def measure_growth(
    layout: Layout, client: Client, turns: int, window: int
) -> tuple[float, float]:
    """CPU ms a turn, of all processes: from the 10th turn on, and at the end of a long session.

    A young session and the old one go on by turns, so that what else the machine does falls on
    both alike.
    """

    async def used() -> float:
        return sum((await layout.cpu()).values())

    early = late = 0.0
    async with (
        aclosing(client.session_turns("old", turns)) as old,
        aclosing(client.session_turns("young", 10 + window)) as young,
    ):
        for _ in range(turns - window):
            await anext(old)
        for _ in range(10):
            await anext(young)
        for _ in range(window):
            before = await used()
            await anext(young)
            between = await used()
            await anext(old)
            early += between - before
            late += await used() - between
    return early / window * 1e3, late / window * 1e3


async def measure_parked(layout: Layout, client: Client, sessions: int, seconds: float) -> float:
    """The share of one core that sessions cost while each waits for its next message."""
    names = iter(range(sessions))

    async def park() -> None:
        for number in names:
            await client.session(f"parked-{number}", 1)

    await asyncio.gather(*(park() for _ in range(16)))
    await asyncio.sleep(1)
    before = await layout.cpu()
    await asyncio.sleep(seconds)
    after = await layout.cpu()
    used = sum(after[name] - before[name] for name in layout.children)
    return used / seconds
