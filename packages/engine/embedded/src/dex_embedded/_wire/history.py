"""History events: their stored form, and the form a reader gets.

An attribute in a stored event is its key and the version of its value, written where the value
belongs as a blob reference whose id is the version number. So history grows by what happened and
not by what a handler was shown. A reader gets the values back in place of the references; a value
that was erased since is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from dex.dexpb import dex_pb2 as pb
from google.protobuf.struct_pb2 import NullValue

from dex_embedded._kernel import events as kernel
from dex_embedded._kernel.values import (
    AppliedWrite,
    AttributeVersion,
    ChannelMessage,
    Durability,
    Failure,
    FailureKind,
    FlowStatus,
    MessageDeletion,
    Method,
    RetryPolicy,
    Routing,
    StepDecision,
    StepOutput,
    WaitingCondition,
)
from dex_embedded._runtime.frame_size import MAXIMUM_FRAME_BYTES
from dex_embedded._wire.encode import encode_condition_results, encode_message
from dex_embedded._wire.enums import proto_enum

_PLACEHOLDER: Final = "internal_blob_id_for_string_value"
_NULL: Final = pb.Value(null_value=proto_enum(NullValue, 0))


class _Writes(Protocol):
    """A repeated field of attribute writes."""

    def append(self, value: pb.AttributeWrite, /) -> None: ...


# --- storing -------------------------------------------------------------------------------------


def encode_event(event: kernel.HistoryEvent) -> bytes:
    """The stored form of an event."""
    message = pb.FlowHistoryEvent(event_id=event.event_id, run_attempt=event.run_attempt)
    message.event_time.FromNanoseconds(int(event.event_time * 1e9))
    match event.payload:
        case kernel.FlowStarted() as started:
            _flow_started(message.flow_started_or_continued, started)
        case kernel.StepWaitForCompleted() as done:
            part = message.step_wait_for_completed
            _input(part.input, done.input)
            _context(part.context, done.context)
            output = part.output
            output.SetInParent()
            if done.result.condition is not None:
                _condition(output.wait_for_condition, done.result.condition)
            _writes(output.upsert_attributes, done.writes)
            output.publish_to_channel.extend(_messages(done.published))
            output.record_events.extend(_pairs(done.result.effects.recorded_events))
            output.upsert_step_execution_locals.extend(_pairs(done.result.locals))
            output.delete_from_channel.extend(_deletions(done.result.effects.deletions))
        case kernel.StepExecuteCompleted() as done:
            part = message.step_execute_completed
            _input(part.input, done.input)
            _context(part.context, done.context)
            result = part.output
            result.SetInParent()
            if done.result.decision is not None:
                _decision(result.step_decision, done.result.decision)
            _writes(result.upsert_attributes, done.writes)
            result.publish_to_channel.extend(_messages(done.published))
            result.record_events.extend(_pairs(done.result.effects.recorded_events))
            result.upsert_step_execution_locals.extend(_pairs(done.result.locals))
            result.delete_from_channel.extend(_deletions(done.result.effects.deletions))
        case kernel.StepFailed() as failed:
            if failed.method is Method.WAIT_FOR:
                target = message.step_wait_for_failed
            else:
                target = message.step_execute_failed
            _input(target.input, failed.input)
            _context(target.context, failed.context)
            encode_failure(target.output.failure, failed.failure)
        case kernel.StepPending() as pending:
            if pending.method is Method.WAIT_FOR:
                place = message.step_wait_for_pending
            else:
                place = message.step_execute_pending
            _input(place.input, pending.input)
            _context(place.context, pending.context)
            place.phase = proto_enum(pb.PendingStepMethodPhase, pending.phase)
        case kernel.RpcCompleted() as rpc:
            _rpc(message.rpc_execution_completed, rpc)
        case kernel.ChannelPublished() as published:
            message.channel_external_publish.messages.extend(_messages(published.messages))
        case kernel.ChannelDeleted() as deleted:
            message.channel_external_delete.messages.extend(_deletions(deleted.deletions))
        case kernel.FlowClosed() as closed:
            end = message.flow_closed
            end.flow_status = proto_enum(pb.FlowStatus, closed.status)
            end.results.extend(encode_output(output) for output in closed.outputs)
            end.error_type = proto_enum(pb.FlowErrorType, closed.error_type)
            end.error_message = closed.error_message
            end.sticky_app_worker_id = closed.sticky_worker
    return message.SerializeToString()


def _flow_started(
    message: pb.FlowStartedOrContinuedHistoryEvent, started: kernel.FlowStarted
) -> None:
    request = started.request
    message.flow_execution_id.flow_id = request.flow_id
    message.flow_execution_id.run_id = started.run_id
    message.flow_type = request.flow_type
    message.flow_config.MergeFromString(request.config)
    start = message.initial_start
    start.start_step_type = request.start_step_type
    if request.start_step_type:
        start.step_input.MergeFromString(request.start_step_input)
        start.step_options.MergeFromString(request.start_step_options.wire)
    start.initial_attributes.extend(_versions(started.attributes))


def _rpc(message: pb.RpcExecutionCompletedEvent, rpc: kernel.RpcCompleted) -> None:
    message.rpc_name = rpc.rpc_name
    message.is_set_attribute_api = rpc.is_set_attributes
    message.served_by_app_worker_id = rpc.served_by
    if rpc.input is not None:
        message.input.MergeFromString(rpc.input)
    if rpc.result.output is not None:
        message.output.MergeFromString(rpc.result.output)
    if rpc.result.decision is not None:
        _decision(message.step_decision, rpc.result.decision)
    _writes(message.upsert_attributes, rpc.writes)
    message.record_events.extend(_pairs(rpc.result.effects.recorded_events))
    message.publish_to_channel.extend(_messages(rpc.published))
    message.delete_from_channel.extend(_deletions(rpc.result.effects.deletions))


def _input(message: pb.StepMethodEventInput, given: kernel.StepEventInput) -> None:
    message.step_input.MergeFromString(given.step_input)
    message.attributes.extend(_versions(given.attributes))
    if given.results is not None:
        message.condition_results.SetInParent()
        message.condition_results.MergeFromString(encode_condition_results(given.results))
    message.step_execution_locals.extend(_pairs(given.locals))


def _context(message: pb.StepMethodEventContext, context: kernel.StepEventContext) -> None:
    message.step_execution_id = context.step_execution_id
    message.from_step_execution_id = context.from_step_execution_id
    message.step_type = context.step_type
    durability = context.durability or Durability.SYNC
    message.durability = proto_enum(pb.StepDurability, durability)
    message.final_attempt = context.final_attempt
    if context.started_at is not None:
        message.started_time.FromNanoseconds(int(context.started_at * 1e9))
    message.duration.FromNanoseconds(int(context.duration * 1e9))
    options = message.method_options
    options.timeout_seconds = context.timeout
    options.heartbeat_timeout_seconds = context.heartbeat_timeout
    encode_retry(options.retry_policy, context.retry)
    if context.last_failure is not None:
        encode_failure(message.last_failure_info, context.last_failure)
    encode_routing(message.pull_routing, context.routing)


def encode_retry(message: pb.RetryPolicy, policy: RetryPolicy) -> None:
    message.initial_interval_seconds = policy.initial_interval
    message.backoff_coefficient = policy.backoff_coefficient
    message.maximum_interval_seconds = policy.maximum_interval
    message.maximum_attempts = policy.maximum_attempts
    message.total_duration_seconds = policy.total_duration


def encode_routing(message: pb.PullRouting, routing: Routing) -> None:
    message.sticky_app_worker_id = routing.sticky_worker
    message.served_by_app_worker_id = routing.served_by
    message.source = proto_enum(pb.PullRoutingSource, routing.source)


def encode_failure(message: pb.StepMethodFailure, failure: Failure) -> None:
    message.attempt = failure.attempt
    message.backend_error = "FLOW_ERROR_TYPE_WORKER_API_FAIL"
    details = message.details
    details.sub_status = pb.ERROR_SUB_STATUS_WORKER_API_ERROR
    if failure.kind is FailureKind.WORKER_ERROR:
        details.original_worker_error_detail = failure.detail
        details.original_worker_error_type = failure.error_type
        details.original_worker_error_status = failure.grpc_status
        details.original_worker_error_stack_trace = failure.stack_trace
    else:
        details.detail = failure.detail
        if failure.kind is FailureKind.WORKER_LOST:
            details.dispatch_task_error_reason = pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED


def encode_output(output: StepOutput) -> pb.StepCompletionOutput:
    message = pb.StepCompletionOutput(
        completed_step_type=output.step_type,
        completed_step_execution_id=output.step_execution_id,
    )
    message.completed_step_output.MergeFromString(output.value)
    return message


def _condition(message: pb.WaitingCondition, condition: WaitingCondition) -> None:
    message.waiting_condition_type = proto_enum(pb.WaitingConditionType, condition.type)
    for timer in condition.timers:
        message.timer_conditions.add(
            condition_id=timer.condition_id, duration_seconds=timer.duration
        )
    for channel in condition.channels:
        message.channel_conditions.add(
            condition_id=channel.condition_id,
            channel_name=channel.channel,
            at_least=channel.at_least,
            at_most=channel.at_most,
        )
    for combination in condition.combinations:
        message.condition_combinations.add(condition_ids=combination)


def _decision(message: pb.StepDecision, decision: StepDecision) -> None:
    message.SetInParent()
    for movement in decision.next_steps:
        step = message.next_steps.add(step_type=movement.step_type)
        step.step_input.MergeFromString(movement.input)
        step.step_options.SetInParent()
        step.step_options.MergeFromString(movement.options.wire)
    if decision.close is not None:
        close = message.close_decision
        close.close_decision_type = proto_enum(pb.CloseDecisionType, decision.close.type)
        close.conditional_channel_names.extend(decision.close.channels)
        if decision.close.close_input is not None:
            close.close_input.MergeFromString(decision.close.close_input)
    message.cancel_step_types.extend(decision.cancel_step_types)
    message.cancel_sibling_step_types.extend(decision.cancel_sibling_step_types)


def _writes(target: _Writes, writes: Iterable[AppliedWrite]) -> None:
    for applied in writes:
        message = pb.AttributeWrite(key=applied.write.key)
        if applied.write.echo:
            message.MergeFromString(applied.write.echo)
        if applied.version is None:
            message.value.CopyFrom(_NULL)
        elif not applied.version.hard_delete:
            setattr(message.value, _PLACEHOLDER, str(applied.version.version))
        target.append(message)


def _versions(versions: Iterable[AttributeVersion]) -> list[pb.KV]:
    found: list[pb.KV] = []
    for version in versions:
        if not version.hard_delete:
            entry = pb.KV(key=version.key)
            setattr(entry.value, _PLACEHOLDER, str(version.version))
            found.append(entry)
    return found


def _messages(messages: Iterable[ChannelMessage]) -> list[pb.ChannelMessage]:
    return [pb.ChannelMessage.FromString(encode_message(message)) for message in messages]


def _deletions(deletions: Iterable[MessageDeletion]) -> list[pb.ChannelMessageDeletion]:
    return [
        pb.ChannelMessageDeletion(channel_name=deletion.channel, message_id=deletion.message_id)
        for deletion in deletions
    ]


def _pairs(pairs: Iterable[tuple[str, bytes]]) -> list[pb.KV]:
    return [pb.KV(key=key, value=pb.Value.FromString(value)) for key, value in pairs]


# --- reading -------------------------------------------------------------------------------------


def restore_events(
    stored: Iterable[bytes], values_of: Callable[[list[int]], Mapping[int, bytes]]
) -> list[pb.FlowHistoryEvent]:
    """Stored events with the values of their attributes back in place."""
    events = [pb.FlowHistoryEvent.FromString(payload) for payload in stored]
    places = [entry for event in events for entry in _entries(event)]
    wanted = {
        int(getattr(entry.value, _PLACEHOLDER))
        for entry in places
        if entry.value.WhichOneof("kind") == _PLACEHOLDER
    }
    values: Mapping[int, bytes] = values_of(sorted(wanted)) if wanted else {}
    for entry in places:
        if entry.value.WhichOneof("kind") == _PLACEHOLDER:
            version = int(getattr(entry.value, _PLACEHOLDER))
            entry.ClearField("value")
            if version in values:
                entry.value.MergeFromString(values[version])
    return events


def _entries(event: pb.FlowHistoryEvent) -> Iterable[pb.KV | pb.AttributeWrite]:
    kind = event.WhichOneof("payload")
    if kind is None or kind in ("flow_closed", "time_travel_fork"):
        return ()
    payload = getattr(event, kind)
    found: list[pb.KV | pb.AttributeWrite] = []
    if kind == "flow_started_or_continued":
        found.extend(payload.initial_start.initial_attributes)
    elif kind == "rpc_execution_completed":
        found.extend(payload.upsert_attributes)
    elif kind.startswith("step_"):
        found.extend(payload.input.attributes)
        if kind.endswith("completed"):
            found.extend(payload.output.upsert_attributes)
    return found


def flow_status(status: FlowStatus) -> pb.FlowStatus:
    return proto_enum(pb.FlowStatus, status)


def fitting(events: list[pb.FlowHistoryEvent]) -> list[pb.FlowHistoryEvent]:
    """As many of the events, from the first on, as one reply can hold; at least one.

    An event too large by itself comes without what its method was shown.
    """
    total = 0
    for index, event in enumerate(events):
        if event.ByteSize() > MAXIMUM_FRAME_BYTES // 2:
            _leave_input_out(event)
        total += event.ByteSize() + 16
        if index and total > MAXIMUM_FRAME_BYTES:
            return events[:index]
    return events


def _leave_input_out(event: pb.FlowHistoryEvent) -> None:
    kind = event.WhichOneof("payload") or ""
    if kind.startswith("step_"):
        given: pb.StepMethodEventInput = getattr(event, kind).input
        given.ClearField("attributes")
        given.unavailable = True
