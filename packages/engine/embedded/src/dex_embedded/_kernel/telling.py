"""How history tells of a step method: its input and its circumstances."""

from __future__ import annotations

from dex_embedded._kernel import retry
from dex_embedded._kernel.events import PendingPhase, StepEventContext, StepEventInput, StepPending
from dex_embedded._kernel.state import FlowRun, Phase, StepExecution
from dex_embedded._kernel.values import Method


def input_of(step: StepExecution) -> StepEventInput:
    """What the current method was, or would have been, given."""
    executing = step.method is Method.EXECUTE
    snapshot = step.invocation.snapshot if step.invocation is not None else None
    return StepEventInput(
        step_input=step.input,
        attributes=snapshot.attributes if snapshot is not None else (),
        results=step.results if executing else None,
        locals=step.locals if executing else (),
    )


def context_of(run: FlowRun, step: StepExecution, now: float) -> StepEventContext:
    """Who, when, under which limits; `now` is the time of the outcome."""
    invocation = step.invocation
    assert invocation is not None
    options = step.options.of(step.method)
    started = invocation.first_attempt_at
    return StepEventContext(
        step_execution_id=step.id,
        from_step_execution_id=step.from_id,
        step_type=step.step_type,
        durability=retry.effective_durability(options, run.default_durability),
        final_attempt=invocation.attempt,
        started_at=started,
        duration=max(0.0, now - started) if started is not None else 0.0,
        timeout=retry.effective_timeout(options),
        heartbeat_timeout=retry.effective_heartbeat_timeout(step.options),
        retry=retry.effective_retry(options.retry),
        last_failure=invocation.last_failure,
        routing=invocation.routing,
    )


def pending_of(run: FlowRun, step: StepExecution, now: float) -> StepPending:
    """A method that has no outcome when the run closes."""
    assert step.invocation is not None
    started = step.phase is not Phase.LOCKED_OUT and step.invocation.first_attempt_at is not None
    return StepPending(
        method=step.method,
        context=context_of(run, step, now),
        input=input_of(step),
        phase=PendingPhase.STARTED if started else PendingPhase.SCHEDULED,
    )
