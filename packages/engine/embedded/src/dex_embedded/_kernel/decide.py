"""The door of the kernel: one input, one transition."""

from __future__ import annotations

from typing import assert_never

from dex_embedded._kernel import calls
from dex_embedded._kernel.closing import stop
from dex_embedded._kernel.deciding import complete_execute
from dex_embedded._kernel.draft import Draft
from dex_embedded._kernel.errors import InvalidRequestError, StaleInputError, UnsupportedError
from dex_embedded._kernel.execution import (
    complete_wait_for,
    drop,
    fail_attempt,
    hand_out,
    lose_attempt,
    take_back,
)
from dex_embedded._kernel.inputs import (
    DeleteChannelMessage,
    ExecuteSucceeded,
    HeartbeatReceived,
    Input,
    MethodFailed,
    PublishToChannel,
    Recover,
    RpcFailed,
    RpcStarted,
    RpcSucceeded,
    SetAttributes,
    SkipTimer,
    StopFlow,
    TaskDropped,
    TaskHandedOut,
    TaskReturned,
    UpdateConfig,
    WaitForSucceeded,
    Wake,
)
from dex_embedded._kernel.settling import do_what_is_due, settle
from dex_embedded._kernel.state import FlowRun, InvocationRef, Phase, StepExecution
from dex_embedded._kernel.transition import Moment, Transition
from dex_embedded._kernel.validation import check_execute_result, check_wait_for_result
from dex_embedded._kernel.values import Failure, FailureKind

_RESTARTED = "the engine restarted while the attempt was in a worker's hands"


def decide(run: FlowRun, message: Input, moment: Moment) -> Transition:
    """Apply one input to a run.

    The run is changed in place. Whatever is raised is raised before the first change, so the run
    is then exactly what it was.

    Args:
        run: The run; the caller has it to itself.
        message: What happened.
        moment: Clock reading and id source.

    Returns:
        The rows to write, the commands to carry out once they are durable, and the outcome of
        the input (see the input's own docstring).

    Raises:
        KernelError: The input is refused.
        StaleInputError: The input speaks of something that is over. Drop it.
    """
    match message:
        case TaskHandedOut(ref=ref, routing=routing):
            step = _current(run, ref, Phase.READY)
            draft = Draft(run, moment)
            outcome = hand_out(draft, step, routing)
            return draft.finish(outcome)
        case RpcStarted():
            return calls.start_rpc(run, message, moment)
        case RpcSucceeded():
            return calls.complete_rpc(run, message, moment)
        case RpcFailed():
            return calls.fail_rpc(run, message, moment)
        case PublishToChannel():
            return calls.publish(run, message, moment)
        case DeleteChannelMessage():
            return calls.delete_message(run, message, moment)
        case SetAttributes():
            return calls.set_attributes(run, message, moment)
        case SkipTimer():
            return calls.skip_timer(run, message, moment)
        case UpdateConfig():
            return calls.update_config(run, message, moment)
        case StopFlow(type=stop_type, reason=reason):
            calls.require_active(run)
            draft = Draft(run, moment)
            stop(draft, stop_type, reason)
            return draft.finish()
        case (
            TaskReturned()
            | TaskDropped()
            | WaitForSucceeded()
            | ExecuteSucceeded()
            | MethodFailed()
            | HeartbeatReceived()
        ):
            step = _current(run, message.ref, Phase.HANDED_OUT)
            draft = Draft(run, moment)
            _progress(draft, step, message)
        case Wake():
            draft = Draft(run, moment)
            do_what_is_due(draft)
        case Recover():
            draft = Draft(run, moment)
            _recover(draft)
        case _:
            assert_never(message)
    settle(draft)
    return draft.finish()


def _current(run: FlowRun, ref: InvocationRef, phase: Phase) -> StepExecution:
    """The step whose current attempt is the named one, in the given phase."""
    step = run.steps.get(ref.step_execution_id)
    if step is None or step.invocation is None or step.phase is not phase or step.ref != ref:
        raise StaleInputError(f"{ref.step_execution_id} attempt {ref.attempt} is not current")
    return step


def _progress(
    draft: Draft,
    step: StepExecution,
    message: TaskReturned
    | TaskDropped
    | WaitForSucceeded
    | ExecuteSucceeded
    | MethodFailed
    | HeartbeatReceived,
) -> None:
    """Something came back for the attempt in a worker's hands."""
    match message:
        case TaskReturned():
            take_back(draft, step)
        case TaskDropped(had_progress=had_progress):
            drop(draft, step, had_progress=had_progress)
        case MethodFailed(failure=failure):
            fail_attempt(draft, step, failure)
        case HeartbeatReceived(value=value):
            assert step.invocation is not None
            # Mostly a bare sign of life: nothing the next attempt gets has changed.
            if value != step.invocation.heartbeat:
                step.invocation.heartbeat = value
                draft.touch(step)
        case WaitForSucceeded(result=result):
            try:
                check_wait_for_result(result)
            except (InvalidRequestError, UnsupportedError) as error:
                fail_attempt(draft, step, _bad_result(error))
            else:
                complete_wait_for(draft, step, result)
        case ExecuteSucceeded(result=result):
            try:
                check_execute_result(result, draft.moment.limits)
            except (InvalidRequestError, UnsupportedError) as error:
                fail_attempt(draft, step, _bad_result(error))
            else:
                complete_execute(draft, step, result)


def _bad_result(error: InvalidRequestError | UnsupportedError) -> Failure:
    kind = (
        FailureKind.UNSUPPORTED
        if isinstance(error, UnsupportedError)
        else FailureKind.INVALID_RESULT
    )
    return Failure(kind=kind, detail=f"invalid result: {error}")


def _recover(draft: Draft) -> None:
    """Pick the run up where another engine process left it."""
    lost = Failure(kind=FailureKind.WORKER_LOST, detail=_RESTARTED)
    for step in list(draft.run.steps.values()):
        if step.id not in draft.run.steps:
            continue  # an earlier loss closed the run
        if step.invocation is not None:
            step.invocation.is_suspect = step.phase in (Phase.READY, Phase.HANDED_OUT)
        if step.phase is Phase.HANDED_OUT:
            lose_attempt(draft, step, lost)
        elif step.phase is Phase.READY:
            assert step.invocation is not None
            draft.make_ready(step, step.invocation.ready_since)
    if draft.run.is_active:
        do_what_is_due(draft)
