"""A flow that uses a bit of everything, the client that drives it, and what must hold at its end.

One order: `Start` opens three executions. `Alpha` may be repeated; `Beta` takes money, may run once
and has `Rescue` as its failure route; `Waiter` waits for both, for three messages of the client and
for a timer. The client repeats each call until it is answered, so the flow is what has to tell a
repetition from a new message.

The rules of `Order.check` are the model: what the client was told and what the handlers did, in
plain lists, against what the engine says in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

import grpc
from dex import (
    AsyncContext,
    Context,
    DexServiceError,
    FlowNotActiveOrNotFoundError,
    FlowResult,
    FlowStatus,
    RetryPolicy,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    go_to_many,
    graceful_complete,
)
from dex.dexpb import dex_pb2 as pb

from engine_testing.probe import (
    COUNT,
    EVENTS,
    INBOX,
    ITEMS,
    NOTE,
    OTHER,
    PROBE,
    Alpha,
    Beta,
    Rescue,
    Script,
    Waiter,
)
from engine_testing.world import World

ONCE: Final = StepOptions(
    execute_retry=RetryPolicy(maximum_attempts=1)
).on_execute_failure_proceed_to(Rescue)
MESSAGES: Final = ("m1", "m2", "m3")
NOTES: Final = ("n1", "n2")
ENDS_WITHIN: Final = 600.0
PASSING: Final = ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED")

T = TypeVar("T")


async def persist(call: Callable[[], Awaitable[T]]) -> tuple[T, int]:
    """Repeats a call while the engine is away; returns its answer and how often it was made."""
    tries = 0
    async with asyncio.timeout(ENDS_WITHIN):
        while True:
            tries += 1
            try:
                return await call(), tries
            except (DexServiceError, grpc.aio.AioRpcError) as error:
                if not _will_pass(error):
                    raise
                await asyncio.sleep(0.05)


def _will_pass(error: DexServiceError | grpc.aio.AioRpcError) -> bool:
    """Whether the engine, or every worker, is only away for a moment."""
    code = error.code if isinstance(error, DexServiceError) else error.code()
    return code.name in PASSING or "no worker took" in str(error)


class Order:
    """One flow, from its start to its check.

    Attributes:
        script: Its handlers.
        charges: Times the money was taken.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.script = Script(
            execute={
                "Start": self._start,
                "Alpha": self._alpha,
                "Beta": self._beta,
                "Rescue": self._rescue,
                "Waiter": self._finish,
            },
            wait_for={"Waiter": self._wait},
            rpc={"change": self._change, "locked": self._locked},
        )
        self.charges = 0
        self._tries: Counter[str] = Counter()
        self._result: FlowResult | None = None

    @property
    def was_unknown(self) -> bool:
        """Whether the failure route of the payment ran."""
        return bool(self.script.calls_of("Rescue"))

    # --- what the worker does ---

    async def _start(self, context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(
            StepMovement.of(Alpha, given),
            StepMovement.of(Beta, given, options=ONCE),
            StepMovement.of(Waiter, given),
        )

    async def _alpha(self, context: AsyncContext, given: str) -> StepDecision:
        await context.heartbeat(1)
        EVENTS.write(context, "alpha")
        await asyncio.sleep(0.03)
        ITEMS.set(context, "alpha", given)
        OTHER.publish(context, "alpha")
        return dead_end()

    async def _beta(self, context: AsyncContext, given: str) -> StepDecision:
        self.charges += 1
        await asyncio.sleep(0.02)
        OTHER.publish(context, "charged")
        return dead_end()

    async def _rescue(self, context: AsyncContext, given: str) -> StepDecision:
        OTHER.publish(context, "unknown")
        return dead_end()

    async def _wait(self, context: AsyncContext, given: str) -> Wait:
        return Wait.all_of(
            OTHER.for_n(2),
            INBOX.for_n(len(MESSAGES)),
            Timer.by_duration(timedelta(seconds=1)),
        )

    async def _finish(self, context: AsyncContext, given: str) -> StepDecision:
        told = {
            "inbox": list(INBOX.results(context)),
            "other": sorted(OTHER.results(context)),
            "seen": NOTE.get(context),
            "count": COUNT.get(context),
        }
        return graceful_complete(json.dumps(told))

    async def _change(self, context: Context, given: str) -> RPCResult[str]:
        # Every try of the client has a request id of its own, so a repetition is told by content.
        seen = (NOTE.get(context) or "").split()
        if given not in seen:
            NOTE.set(context, " ".join([*seen, given]))
            INBOX.publish(context, given)
        return RPCResult("")

    async def _locked(self, context: Context, given: str) -> RPCResult[str]:
        COUNT.set(context, (COUNT.get(context) or 0) + 1)
        return RPCResult("")

    # --- what the client does ---

    async def _call(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        _, self._tries[name] = await persist(call)

    def _say(self, text: str) -> Callable[[], Awaitable[object]]:
        return lambda: self._world.call(PROBE.change, self.script.flow_id, text)

    async def drive(self) -> None:
        """Takes the order to its end, over whatever downtime there is."""
        flow_id, world = self.script.flow_id, self._world
        options = {"request_id": flow_id, "ignore_already_started": True}
        await self._call("start", lambda: world.start(self.script, flow_id, **options))
        for message in MESSAGES[:-1]:
            await self._call(message, self._say(message))
        await self._call("locked", lambda: world.call(PROBE.locked, flow_id, ""))
        for note in NOTES:
            await self._call(
                note,
                lambda text=note: world.client.write_stream(flow_id, EVENTS, "client", text),
            )
        # Nothing is called after this one: it may be what the flow was waiting for.
        with contextlib.suppress(FlowNotActiveOrNotFoundError):
            await self._call(MESSAGES[-1], self._say(MESSAGES[-1]))
        self._result, _ = await persist(lambda: world.result(self.script, seconds=20))

    # --- what must hold ---

    async def check(self) -> None:
        """Asserts that nothing was lost, doubled or reordered."""
        assert self._result is not None
        assert self._result.status is FlowStatus.COMPLETED
        told = json.loads(self._result.single_output(str))
        assert told["inbox"] == list(MESSAGES)
        assert told["seen"] == " ".join(MESSAGES)
        assert 1 <= told["count"] <= self._tries["locked"]
        if self.was_unknown:
            assert told["other"] == ["alpha", "unknown"]
            assert self.charges <= 1, "the money was taken twice"
        else:
            assert told["other"] == ["alpha", "charged"]
            assert self.charges == 1, f"the money was taken {self.charges} times"
        await self._check_history()
        await self._check_stream()

    async def _check_history(self) -> None:
        request = pb.GetHistoryEventsRequest(flow_id=self.script.flow_id, estimate_page_size=200)
        reply, _ = await persist(lambda: self._world.stub.GetHistoryEvents(request))
        ids = [event.event_id for event in reply.events]
        assert ids == sorted(set(ids))
        ended = Counter(
            (name, getattr(event, name).context.step_type)
            for event in reply.events
            if (name := event.WhichOneof("payload") or "").startswith("step_")
        )
        beta = ended.pop(("step_execute_completed", "Beta"), 0)
        failed = ended.pop(("step_execute_failed", "Beta"), 0)
        assert (beta, failed) == ((0, 1) if self.was_unknown else (1, 0))
        rescue = ended.pop(("step_execute_completed", "Rescue"), 0)
        assert rescue == failed
        assert ended == {
            ("step_execute_completed", "Start"): 1,
            ("step_execute_completed", "Alpha"): 1,
            ("step_wait_for_completed", "Waiter"): 1,
            ("step_execute_completed", "Waiter"): 1,
        }

    async def _check_stream(self) -> None:
        page, _ = await persist(
            lambda: self._world.client.list_stream_messages(
                self.script.flow_id, EVENTS, page_size=200
            )
        )
        assert not page.next_page_token
        values = [message.value for message in reversed(page.messages)]
        mine = [value for value in values if value in NOTES]
        # A write that was not answered may have been made, and is then made again.
        assert mine == sorted(mine), f"stream messages out of order: {mine}"
        for note, count in Counter(mine).items():
            assert count <= self._tries[note], f"{note} was written {count} times"
        assert set(mine) == set(NOTES), f"a stream message was lost: {mine}"
        assert set(values) <= {*NOTES, "alpha"}
