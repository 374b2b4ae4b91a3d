"""Creation of runs."""

from __future__ import annotations

from dataclasses import dataclass

from dex_embedded._kernel.draft import Draft
from dex_embedded._kernel.errors import FlowAlreadyStartedError
from dex_embedded._kernel.events import FlowStarted
from dex_embedded._kernel.execution import start_steps
from dex_embedded._kernel.inputs import StartFlow
from dex_embedded._kernel.settling import settle
from dex_embedded._kernel.state import FlowRun, QueuedStep
from dex_embedded._kernel.transition import Limits, Moment, Transition
from dex_embedded._kernel.validation import check_start
from dex_embedded._kernel.values import START_FROM_ID, FlowStatus, IdReusePolicy, StepMovement


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousRun:
    """What the id reuse policy looks at: the current or latest run of the flow id."""

    run_id: str
    request_id: str
    status: FlowStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """What an accepted start comes to."""

    existing_run_id: str = ""
    """Not empty: answer this run id, start nothing."""
    terminate_first: bool = False
    """Decide `StopFlow(TERMINATE)` on the active run first, and stage both transitions together."""


def plan_start(previous: PreviousRun | None, request: StartFlow, limits: Limits) -> StartPlan:
    """Check a start request and weigh the id reuse policy. Changes nothing.

    Raises:
        InvalidRequestError: The request breaks a rule; the text names field and character.
        UnsupportedError: It needs a feature that is not served.
        FlowAlreadyStartedError: The policy rejects it.
    """
    check_start(request, limits)
    if previous is None:
        return StartPlan()
    policy = request.id_reuse_policy
    if previous.status is FlowStatus.RUNNING:
        if policy is IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING:
            return StartPlan(terminate_first=True)
    elif _allows_reuse(policy, previous.status):
        return StartPlan()
    if request.ignore_already_started and request.request_id == previous.request_id:
        return StartPlan(existing_run_id=previous.run_id)
    raise FlowAlreadyStartedError(request.flow_id, previous.run_id)


def _allows_reuse(policy: IdReusePolicy, status: FlowStatus) -> bool:
    """Whether the id of a closed run may be used again."""
    match policy:
        case IdReusePolicy.ALLOW_IF_NO_RUNNING | IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING:
            return True
        case IdReusePolicy.ALLOW_IF_PREVIOUS_EXISTS_ABNORMALLY:
            return status is not FlowStatus.COMPLETED
        case _:
            return False


def start_run(request: StartFlow, moment: Moment) -> Transition:
    """Create the run of a planned start; `Transition.run` is the new run."""
    run_id = moment.new_id()
    run = FlowRun(
        key=moment.new_run_key(),
        flow_id=request.flow_id,
        run_id=run_id,
        first_run_id=run_id,
        flow_type=request.flow_type,
        request_id=request.request_id,
        started_at=moment.now,
        config=request.config,
        default_durability=request.default_durability,
    )
    draft = Draft(run, moment, is_new_run=True)
    writes = draft.write_attributes(
        write for write in request.attributes if write.value is not None
    )
    draft.add_event(
        FlowStarted(
            run_id=run_id,
            request=request,
            attributes=tuple(w.version for w in writes if w.version is not None),
        )
    )
    if request.start_step_type:
        movement = StepMovement(
            step_type=request.start_step_type,
            input=request.start_step_input,
            options=request.start_step_options,
        )
        if request.start_delay:
            run.queue.append(QueuedStep(movement=movement, from_id=START_FROM_ID))
            run.start_due_at = moment.now + request.start_delay
        else:
            start_steps(draft, [movement], START_FROM_ID)
    settle(draft)
    return draft.finish()
