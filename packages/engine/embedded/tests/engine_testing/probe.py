"""A flow whose handlers are written by the test that uses it.

The worker runs in the test's own process, so a handler is a plain function of the test: `Script`
holds them by Step type or RPC name, and the flow's Steps and RPCs look theirs up by flow id.
"""

# The SDK takes asynchronous handlers; its base class is typed for synchronous ones.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from dex import (
    AsyncContext,
    Attribute,
    AttributeIndex,
    AttributeMap,
    Channel,
    ChannelMap,
    Context,
    Flow,
    IndexType,
    PersistenceSchema,
    RecoveryErrorInfo,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Stream,
    Wait,
    graceful_complete,
    rpc,
)

NOTE: Attribute[str] = Attribute("Note", str)
COUNT: Attribute[int] = Attribute("Count", int)
STATUS: Attribute[str] = Attribute(
    "Status", str, index=AttributeIndex(IndexType.KEYWORD, "ProbeStatus")
)
ITEMS: AttributeMap[str] = AttributeMap("Items", str)
INBOX: Channel[str] = Channel("Inbox", str)
OTHER: Channel[str] = Channel("Other", str)
SECRET: Attribute[str] = Attribute("Secret", str, hard_delete_on_null=True)
BOXES: ChannelMap[str] = ChannelMap("Boxes", str)
EVENTS: Stream[str] = Stream("Events", str, 1_000_000)

Execute = Callable[[AsyncContext, str], Awaitable[StepDecision]]
WaitFor = Callable[[AsyncContext, str], Awaitable[Wait]]
Rpc = Callable[[Context, str], Awaitable[RPCResult[str]]]


@dataclass(frozen=True)
class Call:
    """One arrival at a Step method."""

    step: str
    method: str
    attempt: int
    from_id: str
    input: str
    first_attempt_at: float
    recovery_error: RecoveryErrorInfo | None


@dataclass
class Script:
    """The handlers of one flow. A Step without one completes the flow with its input."""

    execute: dict[str, Execute] = field(default_factory=dict[str, Execute])
    wait_for: dict[str, WaitFor] = field(default_factory=dict[str, WaitFor])
    rpc: dict[str, Rpc] = field(default_factory=dict[str, Rpc])
    flow_id: str = field(default_factory=lambda: f"probe-{uuid.uuid4().hex[:12]}")
    calls: list[Call] = field(default_factory=list[Call])

    def __post_init__(self) -> None:
        SCRIPTS[self.flow_id] = self

    def calls_of(self, step: str, method: str = "execute") -> list[Call]:
        """The arrivals at one execution (`Alpha-1`), or at all of a type (`Alpha`)."""
        return [
            call
            for call in self.calls
            if call.method == method and step in (call.step, call.step.rpartition("-")[0])
        ]


SCRIPTS: dict[str, Script] = {}


def _note(context: AsyncContext, method: str, given: str) -> Script:
    script = SCRIPTS[context.flow_id]
    script.calls.append(
        Call(
            context.step_execution_id,
            method,
            context.attempt,
            context.from_step_execution_id,
            given,
            context.first_attempt_at.timestamp(),
            context.recovery_error,
        )
    )
    return script


async def _execute(context: AsyncContext, given: str) -> StepDecision:
    script = _note(context, "execute", given)
    handler = script.execute.get(context.step_execution_id.rpartition("-")[0])
    return graceful_complete(given) if handler is None else await handler(context, given)


async def _wait(context: AsyncContext, given: str) -> Wait:
    script = _note(context, "wait_for", given)
    handler = script.wait_for.get(context.step_execution_id.rpartition("-")[0])
    return Wait.until(INBOX.for_one()) if handler is None else await handler(context, given)


class Start(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return await _execute(context, input)


class Alpha(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return await _execute(context, input)


class Beta(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return await _execute(context, input)


class Rescue(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return await _execute(context, input)


class Waiter(Step[str]):
    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        return await _wait(context, input)

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return await _execute(context, input)


class Watcher(Step[str]):
    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        return await _wait(context, input)

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return await _execute(context, input)


class Loader(Step[str]):
    """A Step whose registered options load the items."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_load_attribute_maps=(ITEMS,))

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return await _execute(context, input)


class Probe(Flow[str]):
    """Has one of everything a test may want."""

    def get_steps(self) -> StepList[str]:
        steps: list[Step[Any]] = [Alpha(), Beta(), Rescue(), Waiter(), Watcher(), Loader()]
        return StepList.start_step(Start()).other_steps(*steps)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(NOTE, COUNT, STATUS, ITEMS, SECRET, INBOX, OTHER, BOXES, EVENTS)

    async def _run(self, name: str, context: Context, given: str) -> RPCResult[str]:
        handler = SCRIPTS[context.flow_id].rpc.get(name)
        return RPCResult(given) if handler is None else await handler(context, given)

    @rpc(
        load_attribute_maps=(ITEMS,),
        load_channels=(INBOX,),
    )
    async def look(self, context: Context, input: str) -> RPCResult[str]:
        return await self._run("look", context, input)

    @rpc(is_transactional=True, load_channels=(INBOX,))
    async def change(self, context: Context, input: str) -> RPCResult[str]:
        return await self._run("change", context, input)

    @rpc(lock_attributes=(COUNT.lock(),))
    async def locked(self, context: Context, input: str) -> RPCResult[str]:
        return await self._run("locked", context, input)

    @rpc
    async def send(self, context: Context, input: str) -> RPCResult[str]:
        """Publishes its input to the inbox."""
        INBOX.publish(context, input)
        return RPCResult(input)


PROBE = Probe()
