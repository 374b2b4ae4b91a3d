"""The end of a run, in one transition."""

from __future__ import annotations

from dex_embedded._kernel.draft import Draft
from dex_embedded._kernel.events import FlowClosed
from dex_embedded._kernel.state import Phase, StepExecution
from dex_embedded._kernel.telling import pending_of
from dex_embedded._kernel.values import FlowErrorType, FlowStatus, StopType

DEFAULT_FAIL_REASON = "fail by client"


def close(
    draft: Draft,
    status: FlowStatus,
    error_type: FlowErrorType = FlowErrorType.NONE,
    message: str = "",
) -> None:
    """End the run now: everything active is cancelled, history gets its last events.

    Args:
        draft: The transition.
        status: How the run ends.
        error_type: Why it failed, for FAILED.
        message: For FAILED the error message; for any status the text in the last event.
    """
    run = draft.run
    for step in run.steps.values():
        if step.phase is not Phase.WAITING:
            draft.add_event(pending_of(run, step, draft.now))
    for step in list(run.steps.values()):
        cancel(draft, step)
    if run.queue:
        run.queue.clear()
        draft.change_header(bulk=True)
    run.start_due_at = None
    for call_id in run.rpcs:
        draft.withdraw_rpc(call_id)
    run.rpcs.clear()
    run.locks.clear()
    run.status = status
    run.closed_at = draft.now
    run.error_type = error_type
    run.error_message = message if status is FlowStatus.FAILED else ""
    draft.closed = True
    draft.add_event(
        FlowClosed(
            status=status,
            outputs=tuple(run.outputs),
            error_type=error_type,
            error_message=message,
            sticky_worker=run.sticky_worker,
        )
    )


def cancel(draft: Draft, step: StepExecution) -> None:
    """End an execution that has no outcome: nothing it still sends counts."""
    if step.invocation is not None:
        draft.withdraw(step, step.ref)
    draft.remove_step(step)


def stop(draft: Draft, stop_type: StopType, reason: str) -> None:
    """End the run because a client asked."""
    match stop_type:
        case StopType.FAIL:
            close(
                draft,
                FlowStatus.FAILED,
                FlowErrorType.CLIENT_API_FAILING_FLOW,
                reason or DEFAULT_FAIL_REASON,
            )
        case StopType.TERMINATE:
            close(draft, FlowStatus.TERMINATED, message=reason)
        case _:
            close(draft, FlowStatus.CANCELED, message=reason)
