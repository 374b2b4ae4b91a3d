"""The wire's half of `dex_embedded._runtime.codec.Codec`."""

from dex_embedded._wire.encode import encode_rpc_task, encode_step_task
from dex_embedded._wire.history import encode_event

__all__ = ["encode_event", "encode_rpc_task", "encode_step_task"]
