"""What the runtime needs from the wire: frames, without knowing how they are made."""

from __future__ import annotations

from typing import Protocol

from dex_embedded._kernel.events import HistoryEvent
from dex_embedded._kernel.state import Snapshot
from dex_embedded._kernel.transition import HandOut


class Codec(Protocol):
    """Turns kernel values into wire bytes."""

    def encode_step_task(self, task_id: str, work: HandOut) -> bytes:
        """The frame for one attempt. Raises `FrameTooLargeError`."""
        ...

    def encode_rpc_task(
        self,
        task_id: str,
        *,
        flow_id: str,
        run_id: str,
        run_attempt: int,
        flow_type: str,
        flow_started_at: float,
        rpc_name: str,
        rpc_input: bytes,
        snapshot: Snapshot,
        now: float,
        deadline: float,
    ) -> bytes:
        """The frame for one RPC. Raises `FrameTooLargeError`."""
        ...

    def encode_event(self, event: HistoryEvent) -> bytes:
        """The stored form of a history event."""
        ...
