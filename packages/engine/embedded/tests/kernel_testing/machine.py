"""A simple model of a flow, and a Hypothesis machine that runs the kernel beside it.

The model shares no code with the kernel: lists and dicts, and the rules as the semantics state
them. The machine plays client, worker, clock and misfortune; after every action kernel and model
must agree on attributes, channels, steps, attempts, and on what each handler was shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dex_embedded._kernel.errors import LockConflictError, StaleInputError
from dex_embedded._kernel.inputs import (
    ExecuteSucceeded,
    MethodFailed,
    RecordedRequest,
    Recover,
    RpcFailed,
    RpcStarted,
    RpcSucceeded,
    TaskDropped,
    TaskReturned,
    WaitForSucceeded,
)
from dex_embedded._kernel.state import Phase
from dex_embedded._kernel.transition import RpcRepeated
from dex_embedded._kernel.values import (
    AttributeWrite,
    Effects,
    FailureKind,
    MessageDeletion,
    Method,
    Publication,
    RpcResult,
    Selection,
    StepDecision,
    StepOptions,
    WaitForResult,
    WaitingCondition,
    WaitingType,
)
from kernel_testing import (
    WORKER_ERROR,
    FlowDriver,
    execute_result,
    messages,
    move,
    options,
    start_with,
    timer,
    waiting_for,
)

KEYS = ("a", "b", "m/x", "m/y", "n/x")
CHANNELS = ("c", "d")
LOAD = Selection(attribute_maps=("m/", "n/x"), channels=("c",))
FREE_REOFFERS = 3

KINDS: dict[str, StepOptions] = {
    "Waits": options(skip=False, load=LOAD),
    "Plain": options(load=LOAD),
    "Once": options(load=LOAD, attempts=1, on_failure="Recovery"),
    "OnceWaits": options(skip=False, load=LOAD, attempts=1, on_failure="Recovery"),
    "Thrice": options(load=LOAD, attempts=3, on_failure="Recovery"),
    "Locks": options(load=LOAD, locks=("a", "b")),
    "LocksOnce": options(
        skip=False, load=LOAD, attempts=1, locks=("b", "m/x"), on_failure="Recovery"
    ),
}
"""Step types and their options. `Recovery` is what failure routes start: it loads nothing and never
fails for good."""

MAXIMUM_ATTEMPTS = {"Once": 1, "OnceWaits": 1, "Thrice": 3, "LocksOnce": 1}
LOCKS = {"Locks": ("a", "b"), "LocksOnce": ("b", "m/x")}
LOCK_KEYS = ("a", "b", "m/x")


@dataclass
class ModelWait:
    kind: str
    due: list[int]
    channels: list[tuple[str, int, int | None]]
    fired: list[bool] = field(default_factory=list[bool])


@dataclass
class ModelStep:
    step_type: str
    method: str
    phase: str = "ready"
    attempt: int = 1
    shown: tuple[dict[str, bytes], dict[str, int]] | None = None
    """Attributes and channel sizes of the first attempt."""
    retry_at: float | None = None
    free: int = 0
    may_have_run: bool = False
    starts: int = 0
    """Hand-outs of this method that may have run."""
    suspect: bool = False
    """It was ready or out when an engine ended."""
    wait: ModelWait | None = None
    told: list[list[bytes]] | None = None
    """Per channel condition what the wait consumed."""
    name: str = ""
    place: int = 0
    """In the line of those that ever waited for locks."""


class Model:
    """The flow as plain data."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.attributes: dict[str, bytes] = {}
        self.channels: dict[str, list[bytes]] = {name: [] for name in CHANNELS}
        self.steps: dict[str, ModelStep] = {}
        self.counts: dict[str, int] = {}
        self.ended: set[str] = set()
        self.locks: dict[str, str] = {}
        """Who holds which key: a step by its name, or an RPC by its call id."""
        self.calls: dict[str, RpcStarted] = {}
        """RPCs whose handlers are running."""
        self.places = 0

    def start(self, step_type: str) -> None:
        self.counts[step_type] = self.counts.get(step_type, 0) + 1
        waits = step_type in KINDS and not KINDS[step_type].skip_wait_for
        name = f"{step_type}-{self.counts[step_type]}"
        self.steps[name] = ModelStep(step_type, "wait_for" if waits else "execute", name=name)
        self.begin(self.steps[name])

    def begin(self, step: ModelStep) -> None:
        """A method comes next: at the end of the line if it wants locks, which `settle` grants."""
        if step.step_type in LOCKS:
            self.places += 1
            step.phase, step.place = "locked out", self.places

    def end(self, name: str) -> None:
        self.release(name)
        del self.steps[name]
        self.ended.add(name)

    def release(self, holder: str) -> None:
        self.locks = {key: other for key, other in self.locks.items() if other != holder}

    def enter_execute(self, step: ModelStep, told: list[list[bytes]]) -> None:
        self.release(step.name)
        fresh = ModelStep(step.step_type, "execute", told=told, name=step.name)
        step.__dict__.update(fresh.__dict__)
        self.begin(step)

    def write(self, changes: dict[str, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self.attributes.pop(key, None)
            else:
                self.attributes[key] = value

    def visible(self, step_type: str) -> tuple[dict[str, bytes], dict[str, int]]:
        loads = step_type in KINDS
        shown = {
            key: value
            for key, value in self.attributes.items()
            if "/" not in key or (loads and (key.startswith("m/") or key == "n/x"))
        }
        return shown, {name: len(queue) for name, queue in self.channels.items() if queue}

    def next_attempt(self, step: ModelStep) -> None:
        step.attempt += 1
        step.free = 0

    def fail(self, name: str, *, lost: bool) -> None:
        step = self.steps[name]
        if step.attempt >= MAXIMUM_ATTEMPTS.get(step.step_type, 1_000):
            if step.method == "wait_for":
                self.enter_execute(step, [])
            else:
                self.end(name)
                self.start("Recovery")
        else:
            wait = 0 if lost else min(2.0 ** (step.attempt - 1), 100)
            self.next_attempt(step)
            if wait:
                step.phase, step.retry_at = "backing off", self.now + wait
            else:
                step.phase = "ready"

    def settle(self) -> None:
        """Waits in order of age: the dict keeps the order in which executions started."""
        for step in self.steps.values():
            if step.wait is not None:
                self.try_wait(step, step.wait)
        self.grant()

    def grant(self) -> None:
        """All keys or none, and nobody overtakes one who waits for the same key."""
        taken = set(self.locks)
        locked_out = [step for step in self.steps.values() if step.phase == "locked out"]
        for step in sorted(locked_out, key=lambda step: step.place):
            keys = LOCKS[step.step_type]
            if not taken.intersection(keys):
                step.phase = "ready"
                self.locks.update(dict.fromkeys(keys, step.name))
            taken.update(keys)

    def try_wait(self, step: ModelStep, wait: ModelWait) -> None:
        fired = [due <= int(self.now) for due in wait.due]
        if wait.kind == "any":
            if any(fired):
                self.enter_execute(step, [[] for _ in wait.channels])
                return
            for index, (name, low, high) in enumerate(wait.channels):
                if len(self.channels[name]) >= low:
                    told: list[list[bytes]] = [[] for _ in wait.channels]
                    told[index] = self.take(name, high)
                    self.enter_execute(step, told)
                    return
        elif all(fired) and all(len(self.channels[n]) >= low for n, low, _ in wait.channels):
            self.enter_execute(step, [self.take(name, high) for name, _, high in wait.channels])

    def take(self, name: str, high: int | None) -> list[bytes]:
        queue = self.channels[name]
        count = len(queue) if high is None else min(high, len(queue))
        taken, queue[:] = queue[:count], queue[count:]
        return taken


changes_strategy = st.dictionaries(
    st.sampled_from(KEYS), st.one_of(st.none(), st.sampled_from([b"1", b"2", b"3"])), max_size=3
)
bounds_strategy = st.sampled_from([(1, 1), (2, 2), (1, None), (2, 3), (0, 2)])
next_strategy = st.lists(st.sampled_from(sorted(KINDS)), max_size=2)


class KernelMachine(RuleBasedStateMachine):
    """Kernel and model side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.published = 0

    # --- what a store adds in a subclass ---

    def make_flow(self, step_type: str) -> FlowDriver:
        return FlowDriver(start_with(step_type, KINDS[step_type]))

    def restart(self) -> None:
        """Forget everything that is in memory only: calls in progress, and what they hold."""
        run = self.flow.run
        for call in run.rpcs.values():
            for key in call.lock_keys:
                del run.locks[key]
        run.rpcs.clear()

    # --- actions ---

    @initialize(step_type=st.sampled_from(sorted(KINDS)))
    def begin(self, step_type: str) -> None:
        self.flow = self.make_flow(step_type)
        self.model = Model(self.flow.now)
        self.model.start(step_type)
        self.model.settle()

    def some(self, data: st.DataObject, phase: str, method: str = "") -> str | None:
        """One of the steps in the phase, if there is any."""
        names = [
            name
            for name, step in self.model.steps.items()
            if step.phase == phase and method in ("", step.method)
        ]
        return data.draw(st.sampled_from(names)) if names else None

    def fresh_values(self, count: int) -> list[bytes]:
        self.published += count
        return [b"%d" % number for number in range(self.published - count, self.published)]

    @rule(name=st.sampled_from(CHANNELS), count=st.integers(1, 3))
    def publish(self, name: str, count: int) -> None:
        values = self.fresh_values(count)
        self.flow.publish(name, *values)
        self.model.channels[name].extend(values)
        self.model.settle()

    @rule(changes=changes_strategy, next_steps=next_strategy, data=st.data())
    def call_rpc(
        self, changes: dict[str, bytes | None], next_steps: list[str], data: st.DataObject
    ) -> None:
        name = data.draw(st.sampled_from(CHANNELS))
        ids = self.flow.message_ids(name)
        position = data.draw(st.integers(0, len(ids) - 1)) if ids else None
        deletions = (
            (MessageDeletion(channel=name, message_id=ids[position]),)
            if position is not None and data.draw(st.booleans())
            else ()
        )
        if len(self.model.steps) > 6:
            next_steps = []
        self.flow.rpc(
            RpcResult(
                output=b"o",
                effects=Effects(attribute_writes=_writes(changes), deletions=deletions),
                decision=StepDecision(next_steps=tuple(move(t, KINDS[t]) for t in next_steps)),
            )
        )
        self.model.write(changes)
        if deletions and position is not None:
            del self.model.channels[name][position]
        for step_type in next_steps:
            self.model.start(step_type)
        self.model.settle()

    @rule(
        held=st.sampled_from(LOCK_KEYS),
        next_steps=st.permutations(sorted(LOCKS)),
        data=st.data(),
    )
    def contend(self, held: str, next_steps: list[str], data: st.DataObject) -> None:
        """Steps that want overlapping keys start while a call may hold one of them."""
        if len(self.model.steps) <= 6:
            self.start_slow_rpc([held])
            self.call_rpc({}, next_steps, data)

    @rule(keys=st.lists(st.sampled_from(LOCK_KEYS), max_size=2, unique=True))
    def start_slow_rpc(self, keys: list[str]) -> None:
        """Its handler is still running when this action is over."""
        if len(self.model.calls) >= 3:
            return
        if any(key in self.model.locks for key in keys):
            with pytest.raises(LockConflictError):
                self.flow.start_rpc(locks=tuple(keys))
            return
        call = self.flow.start_rpc(locks=tuple(keys))
        self.model.calls[call.call_id] = call
        self.model.locks.update(dict.fromkeys(keys, call.call_id))

    @rule(data=st.data(), changes=changes_strategy, fails=st.booleans())
    def end_slow_rpc(
        self, data: st.DataObject, changes: dict[str, bytes | None], fails: bool
    ) -> None:
        if not self.model.calls:
            return
        call = self.model.calls.pop(data.draw(st.sampled_from(sorted(self.model.calls))))
        result = RpcResult(output=b"slow", effects=Effects(attribute_writes=_writes(changes)))
        answered = RpcSucceeded(call=call, result=result, served_by="worker")
        self.flow.feed(RpcFailed(call=call) if fails else answered)
        self.model.release(call.call_id)
        if not fails:
            self.model.write(changes)
        self.model.settle()
        with pytest.raises(StaleInputError):
            self.flow.feed(answered)
        if not fails:
            recorded = RecordedRequest(request_id=call.request_id, output=b"slow")
            repeated = self.flow.feed(replace(call, recorded=recorded))
            assert repeated.outcome == RpcRepeated(output=b"slow")
            assert not repeated.changes

    @rule(data=st.data())
    def hand_out(self, data: st.DataObject) -> None:
        name = self.some(data, "ready")
        if name is None:
            return
        step = self.model.steps[name]
        if step.shown is None:
            step.shown = self.model.visible(step.step_type)
        step.phase = "out"
        step.starts += 1
        work = self.flow.hand_out(name)
        assert work.ref.attempt == step.attempt
        shown = {version.key: version.value for version in work.snapshot.attributes}
        assert (shown, dict(work.snapshot.channel_sizes)) == step.shown
        is_single = MAXIMUM_ATTEMPTS.get(step.step_type) == 1
        assert work.durable_first == (is_single or step.suspect)
        if is_single:
            assert step.starts == 1
        if step.told is not None and work.results is not None:
            assert [list(channel.values) for channel in work.results.channels] == step.told

    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        name = self.some(data, "out")
        if name is None:
            return
        step = self.model.steps[name]
        self.flow.feed(TaskReturned(ref=self.flow.step(name).ref))
        step.phase = "ready"
        step.starts -= 1
        if step.attempt == 1 and not step.may_have_run:
            step.shown = None

    @rule(data=st.data(), had_progress=st.booleans())
    def drop(self, data: st.DataObject, had_progress: bool) -> None:
        name = self.some(data, "out")
        if name is None:
            return
        step = self.model.steps[name]
        self.flow.feed(TaskDropped(ref=self.flow.step(name).ref, had_progress=had_progress))
        step.may_have_run = True
        counts = had_progress or MAXIMUM_ATTEMPTS.get(step.step_type) == 1
        if counts or step.free == FREE_REOFFERS:
            self.model.fail(name, lost=True)
        else:
            step.free += 1
            step.phase = "ready"
        self.model.settle()

    @rule(data=st.data(), kind=st.sampled_from(sorted(FailureKind, key=lambda k: k.value)))
    def fail(self, data: st.DataObject, kind: FailureKind) -> None:
        name = self.some(data, "out")
        if name is None or kind in (FailureKind.TOO_LARGE, FailureKind.UNSUPPORTED):
            return
        failure = replace(WORKER_ERROR, kind=kind)
        self.flow.feed(MethodFailed(ref=self.flow.step(name).ref, failure=failure))
        self.model.fail(name, lost=kind is FailureKind.WORKER_LOST)
        self.model.settle()

    @rule(
        data=st.data(),
        kind=st.sampled_from(["any", "all"]),
        durations=st.lists(st.integers(0, 20), max_size=2),
        bounds=st.lists(bounds_strategy, max_size=2),
        changes=changes_strategy,
    )
    def succeed_wait_for(
        self,
        data: st.DataObject,
        kind: str,
        durations: list[int],
        bounds: list[tuple[int, int | None]],
        changes: dict[str, bytes | None],
    ) -> None:
        name = self.some(data, "out", "wait_for")
        if name is None:
            return
        channels = [
            (channel, low, high) for channel, (low, high) in zip(CHANNELS, bounds, strict=False)
        ]
        condition = waiting_for(
            WaitingType.ANY_COMPLETED if kind == "any" else WaitingType.ALL_COMPLETED,
            *[timer(duration) for duration in durations],
            *[messages(channel, low, high) for channel, low, high in channels],
        )
        self._finish_wait_for(name, condition, changes)
        step = self.model.steps[name]
        if durations or channels:
            self.model.release(name)
            step.__dict__.update(
                ModelStep(
                    step.step_type,
                    "wait_for",
                    phase="waiting",
                    wait=ModelWait(
                        kind, [int(self.model.now) + seconds for seconds in durations], channels
                    ),
                    name=name,
                ).__dict__
            )
        else:
            self.model.enter_execute(step, [])
        self.model.settle()

    def _finish_wait_for(
        self, name: str, condition: WaitingCondition, changes: dict[str, bytes | None]
    ) -> None:
        result = WaitForResult(
            condition=condition, effects=Effects(attribute_writes=_writes(changes))
        )
        self.flow.feed(WaitForSucceeded(ref=self.flow.step(name).ref, result=result))
        self.model.write(changes)

    @rule(
        data=st.data(),
        changes=changes_strategy,
        next_steps=next_strategy,
        cancel=st.lists(st.sampled_from(sorted(KINDS)), max_size=1),
        publishes=st.booleans(),
    )
    def succeed_execute(
        self,
        data: st.DataObject,
        changes: dict[str, bytes | None],
        next_steps: list[str],
        cancel: list[str],
        publishes: bool,
    ) -> None:
        name = self.some(data, "out", "execute")
        if name is None:
            return
        if len(self.model.steps) > 6:
            next_steps = []
        values = self.fresh_values(1) if publishes else []
        effects = Effects(
            attribute_writes=_writes(changes),
            publications=tuple(Publication(channel="c", value=value) for value in values),
        )
        result = execute_result(
            *[move(step_type, KINDS[step_type]) for step_type in next_steps],
            effects=effects,
            cancel=tuple(cancel),
        )
        self.flow.feed(ExecuteSucceeded(ref=self.flow.step(name).ref, result=result))
        self.model.write(changes)
        self.model.channels["c"].extend(values)
        self.model.end(name)
        for other in [n for n, s in self.model.steps.items() if s.step_type in cancel]:
            self.model.end(other)
        for step_type in next_steps:
            self.model.start(step_type)
        self.model.settle()

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 30.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.flow.advance(seconds)
        self.model.now = self.flow.now
        self._end_back_offs()
        self.model.settle()

    def _end_back_offs(self) -> None:
        for step in self.model.steps.values():
            if step.retry_at is not None and step.retry_at <= self.model.now:
                step.retry_at, step.phase = None, "ready"

    @precondition(
        lambda self: self.model.calls or any(s.phase == "out" for s in self.model.steps.values())
    )
    @rule(downtime=st.sampled_from([0.0, 50.0]))
    def restart_engine(self, downtime: float) -> None:
        self.restart()
        for call_id in self.model.calls:
            self.model.release(call_id)
        self.model.calls.clear()
        self.flow.now += downtime
        self.model.now = self.flow.now
        self.flow.feed(Recover())
        for step in self.model.steps.values():
            step.suspect = step.phase in ("ready", "out")
        for name in [n for n, s in self.model.steps.items() if s.phase == "out"]:
            self.model.fail(name, lost=True)
        self._end_back_offs()
        self.model.settle()

    # --- agreement ---

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "flow"):
            return
        run = self.flow.run
        assert run.is_active
        assert self.flow.attributes() == self.model.attributes
        assert {name: self.flow.channel(name) for name in CHANNELS} == self.model.channels
        phases = {
            Phase.LOCKED_OUT: "locked out",
            Phase.READY: "ready",
            Phase.HANDED_OUT: "out",
            Phase.BACKING_OFF: "backing off",
            Phase.WAITING: "waiting",
        }
        assert {
            name: (
                step.method is Method.WAIT_FOR,
                phases[step.phase],
                step.invocation.attempt if step.invocation else 1,
            )
            for name, step in run.steps.items()
        } == {
            name: (step.method == "wait_for", step.phase, step.attempt)
            for name, step in self.model.steps.items()
        }
        assert list(run.steps) == list(self.model.steps)
        holders = {key: holder.removeprefix("rpc:") for key, holder in run.locks.items()}
        assert holders == self.model.locks
        assert set(run.rpcs) == set(self.model.calls)
        for name in self.model.ended:
            step_type, _, number = name.rpartition("-")
            assert run.step_completed(step_type, int(number))


def _writes(changes: dict[str, bytes | None]) -> tuple[AttributeWrite, ...]:
    return tuple(AttributeWrite(key=key, value=value) for key, value in changes.items())
