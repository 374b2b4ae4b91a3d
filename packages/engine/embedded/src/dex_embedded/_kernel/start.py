"""Creation of runs."""

from __future__ import annotations

from dataclasses import dataclass

from dex_embedded._kernel.inputs import StartFlow
from dex_embedded._kernel.transition import Moment, Transition
from dex_embedded._kernel.values import FlowStatus


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


def plan_start(previous: PreviousRun | None, request: StartFlow) -> StartPlan:
    """Check a start request and weigh the id reuse policy. Changes nothing.

    Raises:
        InvalidRequestError: The request breaks a rule; the text names field and character.
        UnsupportedError: It needs a feature that is not served.
        FlowAlreadyStartedError: The policy rejects it.
    """
    raise NotImplementedError


def start_run(request: StartFlow, moment: Moment) -> Transition:
    """Create the run of a planned start; `Transition.run` is the new run."""
    raise NotImplementedError
