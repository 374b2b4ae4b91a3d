"""Settings of a flow as clients send them: what is served, and what is refused by name."""

from __future__ import annotations

from dex.dexpb import dex_pb2 as pb

from dex_embedded._kernel.errors import InvalidRequestError, UnsupportedError, quoted
from dex_embedded._kernel.inputs import UpdateConfig
from dex_embedded._kernel.values import Durability
from dex_embedded._wire.decode import decode_enum


def check_config(config: pb.FlowConfig) -> None:
    """Refuse settings that would have no effect here.

    A missing target means pull, since no other workers are served.

    Raises:
        UnsupportedError: The flow is to be served by a push worker.
        InvalidRequestError: It names an attribute store.
    """
    target = config.worker_target
    if target.address and not target.is_pull_mode:
        raise UnsupportedError("push workers")
    for name in config.attribute_store_names.names:
        raise InvalidRequestError(f"unknown attribute store {quoted(name)}")


def merge_config(current: bytes, change: pb.FlowConfig) -> UpdateConfig:
    """The settings after a change; what it does not mention stays."""
    merged = pb.FlowConfig.FromString(current)
    if change.HasField("worker_target"):
        merged.ClearField("worker_target")
    merged.MergeFrom(change)
    return UpdateConfig(
        config=merged.SerializeToString(),
        default_durability=decode_enum(Durability, merged.step_durability),
    )
