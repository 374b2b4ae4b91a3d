"""From protocol messages to the kernel's values.

Everything here refuses bad input with `InvalidRequestError`. For a client's request that becomes
its status; for a worker's result it becomes the failure of the attempt.

A `Value` travels as its serialized bytes. It is looked at in three places only: a null attribute is
a deletion, a null output is none, and an indexed value is converted for search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from dex.dexpb import dex_pb2 as pb
from google.protobuf.struct_pb2 import NullValue

from dex_embedded._kernel import values as kernel
from dex_embedded._kernel.errors import InvalidRequestError
from dex_embedded._wire.enums import proto_enum
from dex_embedded._wire.index_values import decode_index_write

NULL_VALUE = pb.Value(null_value=proto_enum(NullValue, 0)).SerializeToString()

_Enum = TypeVar("_Enum")


class _HasField(Protocol):
    """Any message: they all can tell whether a field was sent."""

    def HasField(self, field_name: str, /) -> bool: ...


def decode_enum(enum: type[_Enum], number: int) -> _Enum:
    """Raises `InvalidRequestError` for a number the protocol does not define."""
    try:
        return enum(number)  # pyright: ignore[reportCallIssue]  # every use passes an IntEnum
    except ValueError:
        raise InvalidRequestError(f"{number} is no {enum.__name__}") from None


def decode_value(value: pb.Value, where: str) -> bytes:
    """The bytes of a concrete value.

    Raises:
        InvalidRequestError: The value has no kind, or refers to a blob.
    """
    kind = value.WhichOneof("kind")
    if kind is None:
        raise InvalidRequestError(f"{where} has no value")
    if kind.startswith("internal_blob"):
        raise InvalidRequestError(f"{where} refers to a blob; this engine takes values inline only")
    return value.SerializeToString()


def decode_optional_value(message: _HasField, field: str, value: pb.Value) -> bytes | None:
    """The bytes of a value field, or `None` if it was not sent."""
    return decode_value(value, field) if message.HasField(field) else None


def decode_movement(step: pb.StepMovement) -> kernel.StepMovement:
    return kernel.StepMovement(
        step_type=step.step_type,
        input=decode_value(step.step_input, "step input")
        if step.HasField("step_input")
        else NULL_VALUE,
        options=decode_step_options(step.step_options.SerializeToString()),
    )


@lru_cache(maxsize=4096)
def decode_step_options(wire: bytes) -> kernel.StepOptions:
    """Takes step options apart; remembered, because a step sends the same ones every time."""
    options = pb.StepOptions.FromString(wire)
    failure_options = None
    if options.HasField("execute_failure_proceed_step_options"):
        failure_options = decode_step_options(
            options.execute_failure_proceed_step_options.SerializeToString()
        )
    if not 0 <= options.wait_for_failure_policy <= 2:
        raise InvalidRequestError("unknown wait_for failure policy")
    if not 0 <= options.execute_failure_policy <= 2:
        raise InvalidRequestError("unknown execute failure policy")
    _check_durations(
        heartbeat_timeout=options.heartbeat_timeout_seconds,
        wait_for_timeout=options.wait_for_timeout_seconds,
        execute_timeout=options.execute_timeout_seconds,
    )
    return kernel.StepOptions(
        skip_wait_for=options.skip_wait_for,
        heartbeat_timeout=options.heartbeat_timeout_seconds,
        wait_for=kernel.MethodOptions(
            timeout=options.wait_for_timeout_seconds,
            retry=decode_retry(options.wait_for_retry_policy),
            durability=decode_enum(kernel.Durability, options.wait_for_durability_override),
            lock_keys=decode_lock_keys(options.wait_for_lock_attribute_keys),
            selection=decode_selection(
                options.wait_for_load_attribute_map_instances,
                options.wait_for_load_channel_names,
                options.wait_for_load_channel_map_instances,
            ),
            proceed_on_failure=options.wait_for_failure_policy == 2,
        ),
        execute=kernel.MethodOptions(
            timeout=options.execute_timeout_seconds,
            retry=decode_retry(options.execute_retry_policy),
            durability=decode_enum(kernel.Durability, options.execute_durability_override),
            lock_keys=decode_lock_keys(options.execute_lock_attribute_keys),
            selection=decode_selection(
                options.execute_load_attribute_map_instances,
                options.execute_load_channel_names,
                options.execute_load_channel_map_instances,
            ),
            proceed_on_failure=options.execute_failure_policy == 2
            and bool(options.execute_failure_proceed_step_type),
        ),
        failure_step_type=options.execute_failure_proceed_step_type,
        failure_step_options=failure_options,
        wire=wire,
    )


def decode_retry(policy: pb.RetryPolicy) -> kernel.RetryPolicy:
    _check_durations(
        initial_interval=policy.initial_interval_seconds,
        maximum_interval=policy.maximum_interval_seconds,
        maximum_attempts=policy.maximum_attempts,
        total_duration=policy.total_duration_seconds,
    )
    return kernel.RetryPolicy(
        initial_interval=policy.initial_interval_seconds,
        backoff_coefficient=policy.backoff_coefficient,
        maximum_interval=policy.maximum_interval_seconds,
        maximum_attempts=policy.maximum_attempts,
        total_duration=policy.total_duration_seconds,
    )


def decode_lock_keys(keys: Iterable[str]) -> tuple[str, ...]:
    unique = tuple(sorted(set(keys)))
    if "" in unique:
        raise InvalidRequestError("a lock key is empty")
    return unique


def decode_selection(
    attribute_maps: Iterable[str], channels: Iterable[str], channel_maps: Iterable[str]
) -> kernel.Selection:
    selection = kernel.Selection(
        attribute_maps=tuple(sorted(set(attribute_maps))),
        channels=tuple(sorted(set(channels))),
        channel_maps=tuple(sorted(set(channel_maps))),
    )
    for name in (*selection.attribute_maps, *selection.channel_maps):
        if name.count("/") != 1 or name.startswith("/"):
            raise InvalidRequestError(f"map selection {name!r} is not Name/ or Name/instance")
    for name in selection.channels:
        if not name or "/" in name:
            raise InvalidRequestError(f"channel selection {name!r} is not a channel name")
    return selection if selection != kernel.NOTHING_SELECTED else kernel.NOTHING_SELECTED


def decode_attribute_writes(
    writes: Sequence[pb.AttributeWrite],
) -> tuple[kernel.AttributeWrite, ...]:
    return tuple(_decode_attribute_write(write) for write in writes)


def _decode_attribute_write(write: pb.AttributeWrite) -> kernel.AttributeWrite:
    if not write.key:
        raise InvalidRequestError("an attribute write has no key")
    value = decode_value(write.value, f"attribute {write.key!r}")
    is_null = write.value.WhichOneof("kind") == "null_value"
    index = None
    echo = b""
    if (
        write.HasField("index_config")
        or write.HasField("sync_config")
        or write.is_hard_delete_on_null
    ):
        rest = pb.AttributeWrite(is_hard_delete_on_null=write.is_hard_delete_on_null)
        if write.HasField("index_config"):
            rest.index_config.CopyFrom(write.index_config)
            index = decode_index_write(write)
        if write.HasField("sync_config"):
            rest.sync_config.CopyFrom(write.sync_config)
        echo = rest.SerializeToString()
    return kernel.AttributeWrite(
        key=write.key,
        value=None if is_null else value,
        index=index,
        hard_delete=write.is_hard_delete_on_null,
        echo=echo,
    )


def decode_publications(messages: Sequence[pb.ChannelMessage]) -> tuple[kernel.Publication, ...]:
    found: list[kernel.Publication] = []
    for message in messages:
        if not message.channel_name:
            raise InvalidRequestError("a published message names no channel")
        # A message may carry no value at all, which is not the same as a null.
        value = message.value
        if value.WhichOneof("kind") is not None:
            decode_value(value, f"message for channel {message.channel_name!r}")
        found.append(
            kernel.Publication(channel=message.channel_name, value=value.SerializeToString())
        )
    return tuple(found)


def _decode_deletions(
    deletions: Sequence[pb.ChannelMessageDeletion],
) -> tuple[kernel.MessageDeletion, ...]:
    return tuple(
        kernel.MessageDeletion(channel=deletion.channel_name, message_id=deletion.message_id)
        for deletion in deletions
    )


def _decode_pairs(pairs: Sequence[pb.KV], what: str) -> tuple[tuple[str, bytes], ...]:
    return tuple((pair.key, decode_value(pair.value, f"{what} {pair.key!r}")) for pair in pairs)


_Response = (
    pb.InvokeWaitForMethodResponse | pb.InvokeExecuteMethodResponse | pb.InvokeWorkerRPCResponse
)


def _decode_effects(response: _Response) -> kernel.Effects:
    if not (
        response.upsert_attributes
        or response.publish_to_channel
        or response.delete_from_channel
        or response.record_events
    ):
        return kernel.NO_EFFECTS
    return kernel.Effects(
        attribute_writes=decode_attribute_writes(response.upsert_attributes),
        publications=decode_publications(response.publish_to_channel),
        deletions=_decode_deletions(response.delete_from_channel),
        recorded_events=_decode_pairs(response.record_events, "event"),
    )


def decode_wait_for_result(response: pb.InvokeWaitForMethodResponse) -> kernel.WaitForResult:
    return kernel.WaitForResult(
        effects=_decode_effects(response),
        condition=_decode_condition(response.waiting_condition)
        if response.HasField("waiting_condition")
        else None,
        locals=_decode_pairs(response.upsert_step_exe_locals, "local"),
    )


def decode_execute_result(response: pb.InvokeExecuteMethodResponse) -> kernel.ExecuteResult:
    return kernel.ExecuteResult(
        effects=_decode_effects(response),
        decision=_decode_decision(response.step_decision)
        if response.HasField("step_decision")
        else None,
        locals=_decode_pairs(response.upsert_step_exe_locals, "local"),
    )


def decode_rpc_result(response: pb.InvokeWorkerRPCResponse) -> kernel.RpcResult:
    return kernel.RpcResult(
        output=decode_optional_value(response, "output", response.output),
        effects=_decode_effects(response),
        decision=_decode_decision(response.step_decision)
        if response.HasField("step_decision")
        else None,
    )


def _decode_decision(decision: pb.StepDecision) -> kernel.StepDecision:
    return kernel.StepDecision(
        next_steps=tuple(decode_movement(step) for step in decision.next_steps),
        close=_decode_close(decision.close_decision)
        if decision.HasField("close_decision")
        else None,
        cancel_step_types=tuple(decision.cancel_step_types),
        cancel_sibling_step_types=tuple(decision.cancel_sibling_step_types),
    )


def _decode_close(close: pb.CloseDecision) -> kernel.CloseDecision:
    kind = decode_enum(kernel.CloseType, close.close_decision_type)
    close_input = decode_optional_value(close, "close_input", close.close_input)
    value_kind = close.close_input.WhichOneof("kind")
    reason: str | None = None
    output = close_input if value_kind != "null_value" else None
    if kind is kernel.CloseType.FORCE_FAIL:
        output = None
        if close_input is None:
            reason = ""
        elif value_kind == "string_value":
            reason = close.close_input.string_value
    return kernel.CloseDecision(
        type=kind,
        channels=tuple(close.conditional_channel_names),
        close_input=close_input,
        output=output,
        reason=reason,
    )


def _decode_condition(condition: pb.WaitingCondition) -> kernel.WaitingCondition:
    for timer in condition.timer_conditions:
        if timer.firing_unix_timestamp_seconds:
            raise InvalidRequestError("a timer condition sets its firing time itself")
    return kernel.WaitingCondition(
        type=decode_enum(kernel.WaitingType, condition.waiting_condition_type),
        timers=tuple(
            kernel.TimerCondition(condition_id=timer.condition_id, duration=timer.duration_seconds)
            for timer in condition.timer_conditions
        ),
        channels=tuple(
            kernel.ChannelCondition(
                condition_id=channel.condition_id,
                channel=channel.channel_name,
                at_least=channel.at_least if channel.HasField("at_least") else None,
                at_most=channel.at_most if channel.HasField("at_most") else None,
            )
            for channel in condition.channel_conditions
        ),
        combinations=tuple(
            tuple(combination.condition_ids) for combination in condition.condition_combinations
        ),
        sub_flow_count=len(condition.sub_flow_conditions),
    )


def decode_worker_error(error: pb.WorkerErrorResponse) -> kernel.Failure:
    return kernel.Failure(
        kind=kernel.FailureKind.WORKER_ERROR,
        detail=error.detail,
        error_type=error.error_type,
        stack_trace=error.stack_trace,
        grpc_status=error.grpc_status,
        retry_after=max(error.retry_after_seconds, 0),
    )


def _check_durations(**seconds: int) -> None:
    for name, value in seconds.items():
        if value < 0:
            raise InvalidRequestError(f"{name} is negative")
