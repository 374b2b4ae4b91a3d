"""Applying the decision of a successful Execute, or the steps an RPC asks for."""

from __future__ import annotations

from dex_embedded._kernel.closing import cancel, close
from dex_embedded._kernel.draft import Draft
from dex_embedded._kernel.events import StepExecuteCompleted
from dex_embedded._kernel.execution import leave_with_result, start_steps
from dex_embedded._kernel.state import StepExecution
from dex_embedded._kernel.telling import context_of, input_of
from dex_embedded._kernel.values import (
    CloseDecision,
    CloseType,
    ExecuteResult,
    FlowErrorType,
    FlowStatus,
    StepDecision,
    StepOutput,
)


def complete_execute(draft: Draft, step: StepExecution, result: ExecuteResult) -> None:
    """Apply a checked Execute result: effects, end of the execution, cancellations, close, next
    steps - in this order."""
    decision = result.decision
    assert decision is not None
    context = context_of(draft.run, step, draft.now)
    given = input_of(step)
    leave_with_result(draft, step)
    writes, published = draft.apply(result.effects)
    draft.add_event(
        StepExecuteCompleted(
            context=context, input=given, result=result, writes=writes, published=published
        )
    )
    cancel_selected(draft, decision, step.from_id)
    if decision.close is not None and _close(draft, step, decision.close):
        return
    start_steps(draft, decision.next_steps, step.id)


def cancel_selected(draft: Draft, decision: StepDecision, from_id: str) -> None:
    """Cancel what the decision's selectors hit: executions of the types, and of the sibling types
    those with the same `from_id`."""
    anywhere = set(decision.cancel_step_types)
    siblings = set(decision.cancel_sibling_step_types)
    if not anywhere and not siblings:
        return
    run = draft.run

    def is_hit(step_type: str, its_from_id: str) -> bool:
        return step_type in anywhere or (step_type in siblings and its_from_id == from_id)

    for step in [s for s in run.steps.values() if is_hit(s.step_type, s.from_id)]:
        cancel(draft, step)
    for queued in [q for q in run.queue if is_hit(q.movement.step_type, q.from_id)]:
        run.queue.remove(queued)
        draft.change_header(bulk=True)
        step_type = queued.movement.step_type
        draft.note_ended(f"{step_type}-{draft.count_step(step_type)}")
    if not run.queue:
        run.start_due_at = None


def _close(draft: Draft, step: StepExecution, decision: CloseDecision) -> bool:
    """Carry out a close decision; whether next steps are out of the question now."""
    run = draft.run
    match decision.type:
        case CloseType.FORCE_FAIL:
            close(
                draft,
                FlowStatus.FAILED,
                FlowErrorType.STEP_DECISION_FAILING_FLOW,
                decision.reason or "",
            )
        case CloseType.FORCE_COMPLETE:
            _collect_output(draft, step, decision)
            close(draft, FlowStatus.COMPLETED)
        case CloseType.FORCE_COMPLETE_ON_CHANNELS_EMPTY:
            if any(_is_busy(draft, channel) for channel in decision.channels):
                return False
            _collect_output(draft, step, decision)
            close(draft, FlowStatus.COMPLETED)
        case CloseType.GRACEFUL_COMPLETE:
            _collect_output(draft, step, decision)
            run.completing = True
            draft.change_header()
        case _:
            pass
    return True


def _is_busy(draft: Draft, channel: str) -> bool:
    """Whether messages are pending, or consumed by an Execute that has not answered."""
    run = draft.run
    return channel in run.channels or any(
        name == channel for step in run.steps.values() for name, _ in step.consumed
    )


def _collect_output(draft: Draft, step: StepExecution, decision: CloseDecision) -> None:
    if decision.output is None:
        return
    draft.run.outputs.append(
        StepOutput(step_type=step.step_type, step_execution_id=step.id, value=decision.output)
    )
    draft.change_header(bulk=True)
