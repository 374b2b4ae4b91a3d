"""What a handler is shown of a run."""

from __future__ import annotations

from dex_embedded._kernel.state import FlowRun, Snapshot
from dex_embedded._kernel.values import Selection


def take_snapshot(run: FlowRun, selection: Selection) -> Snapshot:
    """The run as it is now, reduced to the selection. Cost goes by what is selected.

    Also for query RPCs, on running and closed runs alike.
    """
    raise NotImplementedError
