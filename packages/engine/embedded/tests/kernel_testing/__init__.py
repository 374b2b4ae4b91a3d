"""Drives one flow run through the kernel in tests: a manual clock, readable ids, short inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from dex_embedded._kernel.decide import decide
from dex_embedded._kernel.events import EventPayload
from dex_embedded._kernel.inputs import (
    ExecuteSucceeded,
    Input,
    MethodFailed,
    PublishToChannel,
    RpcStarted,
    RpcSucceeded,
    StartFlow,
    TaskHandedOut,
    WaitForSucceeded,
    Wake,
)
from dex_embedded._kernel.invariants import broken_invariants
from dex_embedded._kernel.start import start_run
from dex_embedded._kernel.state import FlowRun, InvocationRef, StepExecution
from dex_embedded._kernel.transition import (
    AppendEvent,
    DispatchStep,
    HandOut,
    Moment,
    RpcDispatch,
    Transition,
    WithdrawStep,
)
from dex_embedded._kernel.values import (
    DEFAULT_STEP_OPTIONS,
    NO_EFFECTS,
    AttributeWrite,
    ChannelCondition,
    CloseDecision,
    CloseType,
    Effects,
    ExecuteResult,
    Failure,
    FailureKind,
    MethodOptions,
    Publication,
    RetryPolicy,
    Routing,
    RpcResult,
    Selection,
    StepDecision,
    StepMovement,
    StepOptions,
    TimerCondition,
    WaitForResult,
    WaitingCondition,
    WaitingType,
)

START = 1_000.0
"""The manual clock's first reading."""

NO_WAIT = StepOptions(skip_wait_for=True)
DEAD_END = CloseDecision(type=CloseType.DEAD_END)
COMPLETE = CloseDecision(type=CloseType.GRACEFUL_COMPLETE)
WORKER_ERROR = Failure(kind=FailureKind.WORKER_ERROR, detail="boom", error_type="app.Boom")


_drivers = itertools.count(1)


class FlowDriver:
    """One run under test. Every input goes through `feed`, which checks the kernel's invariants."""

    def __init__(
        self,
        start: StartFlow | None = None,
        *,
        now: float = START,
        new_run_key: Callable[[], int] = lambda: 1,
        on_transition: Callable[[Transition], None] = lambda _: None,
    ) -> None:
        self.now = now
        self._number = next(_drivers)
        self._numbers = itertools.count(1)
        self._new_run_key = new_run_key
        self._on_transition = on_transition
        self.events: list[EventPayload] = []
        transition = start_run(start or start_with(), self.moment())
        self.run: FlowRun = transition.run
        self.last = transition
        self._take(transition)

    def moment(self) -> Moment:
        return Moment(
            now=self.now,
            new_id=lambda: f"id-{self._number}-{next(self._numbers)}",
            new_run_key=self._new_run_key,
        )

    def feed(self, message: Input) -> Transition:
        transition = decide(self.run, message, self.moment())
        self._take(transition)
        return transition

    def _take(self, transition: Transition) -> None:
        assert broken_invariants(transition.run) == []
        self.last = transition
        self._on_transition(transition)
        self.events.extend(
            change.event.payload for change in transition.changes if isinstance(change, AppendEvent)
        )

    # --- looking ---

    def step(self, step_id: str) -> StepExecution:
        return self.run.steps[step_id]

    def attributes(self) -> dict[str, bytes]:
        return {version.key: version.value for version in self.run.attributes}

    def channel(self, name: str) -> list[bytes]:
        return [message.value for message in self.run.channels.get(name, ())]

    def message_ids(self, name: str) -> list[str]:
        return [message.message_id for message in self.run.channels.get(name, ())]

    # --- acting ---

    def advance(self, seconds: float) -> Transition:
        """Let time pass and wake the run."""
        self.now += seconds
        return self.feed(Wake())

    def hand_out(self, step_id: str, worker: str = "worker") -> HandOut:
        routing = Routing(served_by=worker)
        transition = self.feed(TaskHandedOut(ref=self.step(step_id).ref, routing=routing))
        assert isinstance(transition.outcome, HandOut)
        return transition.outcome

    def wait_for(
        self,
        step_id: str,
        condition: WaitingCondition | None = None,
        effects: Effects = NO_EFFECTS,
        step_locals: tuple[tuple[str, bytes], ...] = (),
    ) -> Transition:
        """Hand WaitFor out and let it succeed."""
        ref = self.hand_out(step_id).ref
        result = WaitForResult(condition=condition, effects=effects, locals=step_locals)
        return self.feed(WaitForSucceeded(ref=ref, result=result))

    def execute(
        self,
        step_id: str,
        *next_steps: StepMovement,
        close: CloseDecision | None = None,
        effects: Effects = NO_EFFECTS,
        cancel: tuple[str, ...] = (),
        cancel_siblings: tuple[str, ...] = (),
    ) -> Transition:
        """Hand Execute out and let it succeed; without steps and close it is a dead end."""
        ref = self.hand_out(step_id).ref
        return self.feed(
            ExecuteSucceeded(
                ref=ref,
                result=execute_result(
                    *next_steps,
                    close=close,
                    effects=effects,
                    cancel=cancel,
                    cancel_siblings=cancel_siblings,
                ),
            )
        )

    def fail(self, step_id: str, failure: Failure = WORKER_ERROR) -> Transition:
        """Hand the current attempt out and let it fail."""
        return self.feed(MethodFailed(ref=self.hand_out(step_id).ref, failure=failure))

    def publish(self, channel: str, *values: bytes) -> Transition:
        return self.feed(
            PublishToChannel(
                messages=tuple(Publication(channel=channel, value=value) for value in values)
            )
        )

    def rpc(
        self, result: RpcResult, *, transactional: bool = True, request_id: str = ""
    ) -> Transition:
        """Start an RPC and let its handler answer."""
        call = self.start_rpc(transactional=transactional, request_id=request_id)
        return self.feed(RpcSucceeded(call=call, result=result, served_by="worker"))

    def start_rpc(
        self,
        *,
        transactional: bool = True,
        locks: tuple[str, ...] = (),
        request_id: str = "",
        name: str = "r",
        selection: Selection | None = None,
    ) -> RpcStarted:
        number = next(self._numbers)
        call = RpcStarted(
            call_id=f"call-{number}",
            rpc_name=name,
            request_id=request_id or f"request-{number}",
            input=b"in",
            lock_keys=locks,
            transactional=transactional,
            selection=selection or Selection(),
        )
        assert isinstance(self.feed(call).outcome, RpcDispatch)
        return call


def execute_result(
    *next_steps: StepMovement,
    close: CloseDecision | None = None,
    effects: Effects = NO_EFFECTS,
    cancel: tuple[str, ...] = (),
    cancel_siblings: tuple[str, ...] = (),
) -> ExecuteResult:
    if not next_steps and close is None:
        close = DEAD_END
    return ExecuteResult(
        effects=effects,
        decision=StepDecision(
            next_steps=next_steps,
            close=close,
            cancel_step_types=cancel,
            cancel_sibling_step_types=cancel_siblings,
        ),
    )


def start_with(
    step_type: str = "A",
    options: StepOptions = DEFAULT_STEP_OPTIONS,
    *,
    attributes: dict[str, bytes] | None = None,
    start_delay: int = 0,
    flow_id: str = "flow",
    request_id: str = "request",
) -> StartFlow:
    return StartFlow(
        flow_id=flow_id,
        flow_type="Flow",
        request_id=request_id,
        start_step_type=step_type,
        start_step_input=b"input",
        start_step_options=options,
        start_delay=start_delay,
        attributes=writes(attributes or {}),
    )


def writes(values: dict[str, bytes] | dict[str, bytes | None]) -> tuple[AttributeWrite, ...]:
    return tuple(AttributeWrite(key=key, value=value) for key, value in values.items())


def setting(values: dict[str, bytes] | dict[str, bytes | None]) -> Effects:
    return Effects(attribute_writes=writes(values))


def publishing(*messages: tuple[str, bytes]) -> Effects:
    return Effects(
        publications=tuple(Publication(channel=name, value=value) for name, value in messages)
    )


def move(step_type: str, options: StepOptions = NO_WAIT) -> StepMovement:
    return StepMovement(step_type=step_type, input=f"to {step_type}".encode(), options=options)


def options(
    *,
    skip: bool = True,
    attempts: int = 0,
    total: int = 0,
    timeout: int = 0,
    initial: int = 0,
    locks: tuple[str, ...] = (),
    load: Selection | None = None,
    on_failure: str = "",
    heartbeat: int = 0,
) -> StepOptions:
    """Options of a step; limits, locks and loads go to both methods."""
    method = MethodOptions(
        timeout=timeout,
        retry=RetryPolicy(
            maximum_attempts=attempts, total_duration=total, initial_interval=initial
        ),
        lock_keys=locks,
        selection=load or Selection(),
        proceed_on_failure=bool(on_failure),
    )
    return StepOptions(
        skip_wait_for=skip,
        heartbeat_timeout=heartbeat,
        wait_for=method,
        execute=method,
        failure_step_type=on_failure,
        failure_step_options=NO_WAIT if on_failure else None,
    )


def waiting_for(
    kind: WaitingType, *parts: TimerCondition | ChannelCondition, combinations: Sequence[str] = ()
) -> WaitingCondition:
    """A condition; each combination is its condition ids, separated by blanks."""
    return WaitingCondition(
        type=kind,
        timers=tuple(part for part in parts if isinstance(part, TimerCondition)),
        channels=tuple(part for part in parts if isinstance(part, ChannelCondition)),
        combinations=tuple(tuple(text.split()) for text in combinations),
    )


def any_of(*parts: TimerCondition | ChannelCondition) -> WaitingCondition:
    return waiting_for(WaitingType.ANY_COMPLETED, *parts)


def all_of(*parts: TimerCondition | ChannelCondition) -> WaitingCondition:
    return waiting_for(WaitingType.ALL_COMPLETED, *parts)


def timer(seconds: int, condition_id: str = "") -> TimerCondition:
    return TimerCondition(duration=seconds, condition_id=condition_id)


def one(name: str, condition_id: str = "") -> ChannelCondition:
    """Exactly one message."""
    return messages(name, 1, 1, condition_id)


def messages(
    name: str, at_least: int | None, at_most: int | None, condition_id: str = ""
) -> ChannelCondition:
    return ChannelCondition(
        channel=name, at_least=at_least, at_most=at_most, condition_id=condition_id
    )


def dispatched(transition: Transition) -> list[InvocationRef]:
    return [c.ref for c in transition.commands if isinstance(c, DispatchStep)]


def withdrawn(transition: Transition) -> list[InvocationRef]:
    return [c.ref for c in transition.commands if isinstance(c, WithdrawStep)]
