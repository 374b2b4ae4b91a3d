"""Life of a step execution.

    movement ─► [WaitFor] ─► waiting ─► [Execute] ─► its decision is applied
                    └ failed: Execute or flow FAILED  └ failed: recovery step or flow FAILED

A method goes LOCKED_OUT ─► READY ─► HANDED_OUT, and after a failed attempt BACKING_OFF ─► READY.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dex_embedded._kernel import retry
from dex_embedded._kernel.closing import close
from dex_embedded._kernel.draft import Draft
from dex_embedded._kernel.events import StepFailed, StepWaitForCompleted
from dex_embedded._kernel.snapshot import take_snapshot
from dex_embedded._kernel.state import Invocation, Phase, StepExecution, Timer, Wait
from dex_embedded._kernel.telling import context_of, input_of
from dex_embedded._kernel.transition import HandOut
from dex_embedded._kernel.values import (
    DEFAULT_STEP_OPTIONS,
    NO_ROUTING,
    ConditionResults,
    Failure,
    FailureKind,
    FlowErrorType,
    FlowStatus,
    Method,
    RecoveryError,
    Routing,
    StepMovement,
    WaitForResult,
)
from dex_embedded._kernel.waiting import is_empty

_NO_ANSWER = "the worker closed its stream without an answer"
_TIMEOUTS = frozenset({FailureKind.TIMEOUT, FailureKind.HEARTBEAT_TIMEOUT})


def start_steps(
    draft: Draft,
    movements: Iterable[StepMovement],
    from_id: str,
    recovery_error: RecoveryError | None = None,
) -> None:
    """Start an execution for each movement, in order. They run in parallel."""
    for movement in movements:
        skip_wait_for = movement.options.skip_wait_for
        step = StepExecution(
            ordinal=draft.next_ordinal(),
            step_type=movement.step_type,
            number=draft.count_step(movement.step_type),
            from_id=from_id,
            input=movement.input,
            options=movement.options,
            recovery_error=recovery_error,
            method=Method.EXECUTE if skip_wait_for else Method.WAIT_FOR,
            phase=Phase.LOCKED_OUT,
        )
        draft.add_step(step)
        _begin_method(draft, step)


def enter_execute(draft: Draft, step: StepExecution, results: ConditionResults) -> None:
    """The wait is over: Execute comes next."""
    step.method = Method.EXECUTE
    step.wait = None
    step.results = results
    draft.touch(step, given=True)
    _begin_method(draft, step)


def _begin_method(draft: Draft, step: StepExecution) -> None:
    step.invocation = Invocation()
    if step.options.of(step.method).lock_keys:
        step.phase = Phase.LOCKED_OUT
        step.invocation.lock_order = draft.next_lock_order()
        draft.touch(step)
    else:
        draft.make_ready(step)


def grant_locks(draft: Draft) -> None:
    """Give free keys to the methods that wait for them, first come first served.

    A method gets all its keys or none, and none that an earlier one waits for.
    """
    run = draft.run
    waiting = [
        (step.invocation.lock_order, step)
        for step in run.steps.values()
        if step.phase is Phase.LOCKED_OUT and step.invocation is not None
    ]
    wanted_earlier: set[str] = set()
    for _, step in sorted(waiting, key=lambda pair: pair[0]):
        keys = step.options.of(step.method).lock_keys
        if any(key in run.locks or key in wanted_earlier for key in keys):
            wanted_earlier.update(keys)
            continue
        draft.lock(step, keys)
        draft.make_ready(step)


def hand_out(draft: Draft, step: StepExecution, routing: Routing) -> HandOut:
    """A worker is about to get the READY attempt."""
    run = draft.run
    invocation = step.invocation
    assert invocation is not None
    options = step.options.of(step.method)
    if invocation.first_attempt_at is None:
        invocation.first_attempt_at = draft.now
    elif invocation.ready_since is not None:
        invocation.waited += max(0.0, draft.now - invocation.ready_since)
    invocation.ready_since = None
    invocation.handed_out_at = draft.now
    invocation.routing = routing
    if invocation.snapshot is None:
        invocation.snapshot = take_snapshot(run, options.selection)
    step.phase = Phase.HANDED_OUT
    draft.touch(step)
    executing = step.method is Method.EXECUTE
    durability = retry.effective_durability(options, run.default_durability)
    return HandOut(
        ref=step.ref,
        method=step.method,
        durable_first=retry.is_single_attempt(options) or invocation.is_suspect,
        flow_id=run.flow_id,
        run_id=run.run_id,
        run_attempt=run.run_attempt,
        flow_type=run.flow_type,
        flow_started_at=run.started_at,
        step_type=step.step_type,
        from_step_execution_id=step.from_id,
        step_input=step.input,
        first_attempt_at=invocation.first_attempt_at,
        snapshot=invocation.snapshot,
        locals=step.locals if executing else (),
        results=step.results if executing else None,
        recovery_error=(step.wait_for_error if executing else None) or step.recovery_error,
        last_heartbeat=invocation.received_heartbeat,
        deadline=retry.attempt_deadline(invocation, options, durability, draft.now),
        heartbeat_timeout=retry.effective_heartbeat_timeout(step.options),
    )


def take_back(draft: Draft, step: StepExecution) -> None:
    """The worker rejected the attempt without running it: as if it had never been handed out."""
    invocation = step.invocation
    assert invocation is not None
    if invocation.attempt == 1 and invocation.free_reoffers == 0:
        invocation.first_attempt_at = None
        invocation.snapshot = None
    _offer_again(draft, step, invocation)


def drop(draft: Draft, step: StepExecution, *, had_progress: bool) -> None:
    """The worker's stream ended without a frame for the attempt."""
    invocation = step.invocation
    assert invocation is not None
    countable = (
        had_progress
        or retry.is_single_attempt(step.options.of(step.method))
        or invocation.free_reoffers >= retry.FREE_REOFFERS
    )
    if countable:
        fail_attempt(draft, step, Failure(kind=FailureKind.WORKER_LOST, detail=_NO_ANSWER))
        return
    invocation.free_reoffers += 1
    _offer_again(draft, step, invocation)


def _offer_again(draft: Draft, step: StepExecution, invocation: Invocation) -> None:
    invocation.handed_out_at = None
    invocation.routing = NO_ROUTING
    draft.make_ready(step)


def fail_attempt(draft: Draft, step: StepExecution, failure: Failure) -> None:
    """The attempt in a worker's hands failed: try again, or take the failure route."""
    invocation = step.invocation
    assert invocation is not None
    failure = _completed(failure, invocation.attempt)
    if failure.kind in _TIMEOUTS:
        draft.withdraw(step, step.ref)
    options = step.options.of(step.method)
    again = retry.retry_after(failure, invocation, options, draft.now)
    if again is None:
        _fail_for_good(draft, step, failure)
        return
    invocation.last_failure = failure
    invocation.attempt += 1
    invocation.received_heartbeat, invocation.heartbeat = invocation.heartbeat, None
    invocation.handed_out_at = None
    invocation.free_reoffers = 0
    if again.delay > 0:
        step.phase = Phase.BACKING_OFF
        invocation.retry_at = draft.now + again.delay
        draft.touch(step)
    else:
        draft.make_ready(step)


def _completed(failure: Failure, attempt: int) -> Failure:
    detail = failure.detail
    if failure.kind in _TIMEOUTS and "timeout" not in detail:
        detail = f"timeout: {detail}"
    return replace(failure, attempt=attempt, detail=detail)


def _fail_for_good(draft: Draft, step: StepExecution, failure: Failure) -> None:
    run = draft.run
    draft.add_event(
        StepFailed(
            method=step.method,
            context=context_of(run, step, draft.now),
            input=input_of(step),
            failure=failure,
        )
    )
    error = RecoveryError(
        detail=failure.detail, error_type=failure.error_type or failure.kind.value
    )
    options = step.options
    if step.method is Method.WAIT_FOR and options.wait_for.proceed_on_failure:
        _leave_method(draft, step)
        step.wait_for_error = error
        enter_execute(draft, step, ConditionResults(wait_for_failed=True))
    elif (
        step.method is Method.EXECUTE
        and options.execute.proceed_on_failure
        and options.failure_step_type
    ):
        draft.remove_step(step)
        recovery = StepMovement(
            step_type=options.failure_step_type,
            input=step.input,
            options=options.failure_step_options or DEFAULT_STEP_OPTIONS,
        )
        start_steps(draft, [recovery], step.id, error)
    else:
        draft.remove_step(step)
        close(draft, FlowStatus.FAILED, FlowErrorType.WORKER_API_FAIL, failure.detail)


def end_back_off(draft: Draft, step: StepExecution) -> None:
    """The interval before the next attempt is over."""
    invocation = step.invocation
    assert invocation is not None
    due, invocation.retry_at = invocation.retry_at, None
    # Time the engine was down after the interval is waiting, not part of the time budget.
    draft.make_ready(step, due)


def complete_wait_for(draft: Draft, step: StepExecution, result: WaitForResult) -> None:
    """Apply a checked WaitFor result; whether the wait is over already is for `settle` to see."""
    context = context_of(draft.run, step, draft.now)
    given = input_of(step)
    _keep_routing(draft, step)
    _leave_method(draft, step)
    writes, published = draft.apply(result.effects)
    draft.add_event(
        StepWaitForCompleted(
            context=context, input=given, result=result, writes=writes, published=published
        )
    )
    step.locals = result.locals
    condition = result.condition
    if condition is None or is_empty(condition):
        enter_execute(draft, step, ConditionResults())
        return
    now = int(draft.now)
    step.phase = Phase.WAITING
    step.wait = Wait(
        condition=condition,
        timers=[Timer(firing_at=now + timer.duration) for timer in condition.timers],
    )
    draft.touch(step, given=True)


def _leave_method(draft: Draft, step: StepExecution) -> None:
    """The method is over: locks and snapshot go before its writes are applied."""
    draft.unlock(step)
    if step.invocation is not None and step.method is Method.WAIT_FOR:
        step.wait_for_routing = step.invocation.routing
    step.invocation = None


def _keep_routing(draft: Draft, step: StepExecution) -> None:
    """The worker that answered becomes the run's sticky worker."""
    assert step.invocation is not None
    served_by = step.invocation.routing.served_by
    if served_by and served_by != draft.run.sticky_worker:
        draft.run.sticky_worker = served_by
        draft.change_header()


def leave_with_result(draft: Draft, step: StepExecution) -> None:
    """An Execute answered: its worker becomes sticky, the execution is over."""
    _keep_routing(draft, step)
    draft.remove_step(step)


def lose_attempt(draft: Draft, step: StepExecution, failure: Failure) -> None:
    """The engine restarted while the attempt ran.

    The attempt cannot have used more of the time budget than it was allowed to run; the rest of
    the downtime counts as waiting.
    """
    invocation = step.invocation
    assert invocation is not None
    if invocation.handed_out_at is not None:
        ran = draft.now - invocation.handed_out_at
        allowed = retry.effective_timeout(step.options.of(step.method))
        invocation.waited += max(0.0, ran - allowed)
    fail_attempt(draft, step, failure)
