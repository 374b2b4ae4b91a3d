"""The door of the kernel: one input, one transition."""

from __future__ import annotations

from dex_embedded._kernel.inputs import Input
from dex_embedded._kernel.state import FlowRun
from dex_embedded._kernel.transition import Moment, Transition


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
    raise NotImplementedError
