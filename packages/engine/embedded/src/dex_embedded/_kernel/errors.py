"""Refusals of the kernel. Raised before anything changed: the run stays exactly as it was."""

from __future__ import annotations

_LONGEST_QUOTE = 100


def quoted(name: str) -> str:
    """A name of the caller's for an error text: quoted, printable, and cut when it is long."""
    text = repr(name)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}...'"


class KernelError(Exception):
    """Base of every refusal. The text is for the caller; it never holds one of their values."""


class InvalidRequestError(KernelError):
    """The request breaks a rule of the protocol (wire: INVALID_ARGUMENT)."""


class UnsupportedError(KernelError):
    """The request uses a feature this engine does not serve (wire: UNIMPLEMENTED).

    Attributes:
        feature: Name of the feature, for instance `flow timeout`.
    """

    def __init__(self, feature: str) -> None:
        super().__init__(f"this engine does not support {feature} yet")
        self.feature = feature


class FlowAlreadyStartedError(KernelError):
    """The id reuse policy rejects the start (wire: ALREADY_EXISTS, FLOW_ALREADY_STARTED)."""

    def __init__(self, flow_id: str, run_id: str) -> None:
        super().__init__(f"flow {quoted(flow_id)} has already been started")
        self.flow_id = flow_id
        self.run_id = run_id


class FlowNotActiveError(KernelError):
    """The run is closed and the input needs an active one (wire: NOT_FOUND, FLOW_NOT_EXISTS)."""

    def __init__(self, flow_id: str) -> None:
        super().__init__(f"flow {quoted(flow_id)} is not running")
        self.flow_id = flow_id


class LockConflictError(KernelError):
    """An RPC wants a key that is held (wire: ABORTED, WORKER_API_ERROR)."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        super().__init__("one or more attribute keys are locked")
        self.keys = keys


class ChannelMessageNotFoundError(KernelError):
    """A message to delete is not pending (wire: NOT_FOUND, CHANNEL_MESSAGE_NOT_FOUND)."""

    def __init__(self, channel: str, message_id: str) -> None:
        super().__init__(
            f"message {quoted(message_id)} is not pending in channel {quoted(channel)}"
        )
        self.channel = channel
        self.message_id = message_id


class InvalidResultError(KernelError):
    """A worker's result breaks a rule.

    `decide` never lets it out: a step attempt fails with it, an RPC ends with it as its outcome
    (wire: FAILED_PRECONDITION, WORKER_API_ERROR).
    """


class StaleInputError(KernelError):
    """The attempt or RPC call an input speaks of is not the current one: cancelled, superseded,
    already finished, or the run is closed. The sender drops the frame; nothing is answered."""
