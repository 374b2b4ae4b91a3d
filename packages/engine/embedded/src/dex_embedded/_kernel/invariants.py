"""What holds for every run after every transition. For tests and for a debugging switch."""

from __future__ import annotations

from collections.abc import Iterator

from dex_embedded._kernel.state import FlowRun, Phase, StepExecution
from dex_embedded._kernel.values import TimerStatus


def broken_invariants(run: FlowRun) -> list[str]:
    """One sentence for each rule the run breaks; empty when all hold."""
    return [*_of_run(run), *_of_locks(run), *_of_steps(run)]


def _of_run(run: FlowRun) -> Iterator[str]:
    if not run.is_active and (run.steps or run.queue or run.rpcs or run.locks):
        yield "a closed run has something going on"
    if run.is_active != (run.closed_at is None):
        yield "exactly a closed run has a closing time"
    if run.completing and run.is_active and not run.steps and not run.queue:
        yield "a quiet run that was asked to complete is still active"
    for name, queue in run.channels.items():
        if not queue:
            yield f"channel {name} is kept although it is empty"
        sequences = [message.sequence for message in queue]
        if sequences != sorted(sequences) or len(set(sequences)) != len(sequences):
            yield f"channel {name} is out of order"
    if any(version.version > run.attribute_clock for version in run.attributes.in_memory()):
        yield "an attribute version is newer than the run's count of writes"
    shown = {
        message.sequence
        for step in run.steps.values()
        if step.invocation is not None and step.invocation.snapshot is not None
        for _, messages in step.invocation.snapshot.messages
        for message in messages
    }
    if not set(run.retained) <= shown:
        yield "a message is retained that no snapshot shows"
    pending = {message.sequence for queue in run.channels.values() for message in queue}
    if not shown <= pending | set(run.retained):
        yield "a snapshot shows a message that is neither pending nor retained"


def _of_locks(run: FlowRun) -> Iterator[str]:
    held: dict[str, str] = {}
    for step in run.steps.values():
        for key in step.held_locks:
            if key in held:
                yield f"lock {key} has two holders"
            held[key] = step.id
    for call in run.rpcs.values():
        for key in call.lock_keys:
            if key in held:
                yield f"lock {key} has two holders"
            held[key] = f"rpc:{call.call_id}"
    if held != run.locks:
        yield "the table of locks differs from what their holders hold"


def _of_steps(run: FlowRun) -> Iterator[str]:
    ordinals = [step.ordinal for step in run.steps.values()]
    if ordinals != sorted(ordinals):
        yield "executions are not in the order in which they started"
    for step_id, step in run.steps.items():
        if step_id != step.id:
            yield f"{step.id} is filed under {step_id}"
        if step.number > run.step_counts.get(step.step_type, 0):
            yield f"{step.id} was not counted"
        yield from _of_step(step)


def _of_step(step: StepExecution) -> Iterator[str]:
    if step.phase is Phase.WAITING:
        if step.wait is None or step.invocation is not None:
            yield f"{step.id} waits but has no wait, or is in a method as well"
        elif not any(timer.status is TimerStatus.PENDING for timer in step.wait.timers) and (
            not step.wait.condition.channels
        ):
            yield f"{step.id} waits for nothing"
        if step.held_locks:
            yield f"{step.id} holds locks while it waits"
        return
    invocation = step.invocation
    if invocation is None or step.wait is not None:
        yield f"{step.id} is in a method without an invocation, or waits as well"
        return
    wanted = step.options.of(step.method).lock_keys
    if step.held_locks != (() if step.phase is Phase.LOCKED_OUT else wanted):
        yield f"{step.id} does not hold exactly the locks its phase needs"
    if (invocation.retry_at is not None) != (step.phase is Phase.BACKING_OFF):
        yield f"{step.id} has a retry time exactly while it backs off"
    if (invocation.handed_out_at is not None) != (step.phase is Phase.HANDED_OUT):
        yield f"{step.id} has a hand-out time exactly while it is handed out"
    if step.phase is Phase.HANDED_OUT and (
        invocation.first_attempt_at is None or invocation.snapshot is None
    ):
        yield f"{step.id} is handed out without first attempt or snapshot"
    if invocation.attempt > 1 and invocation.snapshot is None:
        yield f"{step.id} is retried without the snapshot of its first attempt"
