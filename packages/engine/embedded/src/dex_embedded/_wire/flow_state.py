"""The state of a run as `GetFlowState` tells it."""

from __future__ import annotations

from collections.abc import Iterable

from dex.dexpb import dex_pb2 as pb

from dex_embedded._kernel.state import AttributeTable, FlowRun, Phase, StepExecution
from dex_embedded._kernel.values import ChannelMessage, Method, StepOptions, WaitingCondition
from dex_embedded._wire.encode import encode_message
from dex_embedded._wire.enums import proto_enum
from dex_embedded._wire.history import encode_failure, encode_output, encode_routing


def encode_flow_state(run: FlowRun) -> pb.GetFlowStateResponse:
    response = pb.GetFlowStateResponse(
        flow_config=pb.FlowConfig.FromString(run.config),
        attributes=encode_attributes(run.attributes, None),
        active_step_executions=[_execution(step) for step in run.steps.values()],
        completed_steps=[encode_output(output) for output in run.outputs],
        sticky_app_worker_id=run.sticky_worker,
    )
    for queued in run.queue:
        movement = queued.movement
        response.queued_steps.append(
            _movement(movement.step_type, movement.input, movement.options, queued.from_id)
        )
    for name, messages in run.channels.items():
        response.pending_channel_messages[name].messages.extend(encode_pending(messages))
    return response


def encode_attributes(table: AttributeTable, keys: frozenset[str] | None) -> list[pb.KV]:
    """Attributes sorted by key; all of them, or those of `keys` that exist."""
    versions = table if keys is None else filter(None, (table.get(key) for key in keys))
    return [
        pb.KV(key=version.key, value=pb.Value.FromString(version.value))
        for version in sorted(versions, key=lambda version: version.key)
    ]


def encode_pending(messages: Iterable[ChannelMessage]) -> list[pb.ChannelMessage]:
    return [pb.ChannelMessage.FromString(encode_message(message)) for message in messages]


def _movement(step_type: str, value: bytes, options: StepOptions, from_id: str) -> pb.StepMovement:
    movement = pb.StepMovement(
        step_type=step_type,
        step_input=pb.Value.FromString(value),
        step_options=pb.StepOptions.FromString(options.wire),
        from_step_execution_id_internal_only=from_id,
    )
    return movement


def _execution(step: StepExecution) -> pb.ActiveStepExecutionState:
    waiting = step.phase is Phase.WAITING
    state = pb.ActiveStepExecutionState(
        step_execution_id=step.id,
        from_step_execution_id=step.from_id,
        step_type=step.step_type,
        phase=pb.ACTIVE_STEP_PHASE_WAITING if waiting else pb.ACTIVE_STEP_PHASE_ACTIVE,
        movement=_movement(step.step_type, step.input, step.options, step.from_id),
        step_execution_locals=[
            pb.KV(key=key, value=pb.Value.FromString(value)) for key, value in step.locals
        ],
    )
    if step.wait is not None:
        _condition(state.waiting_condition, step.wait.condition)
        for condition, timer in zip(step.wait.condition.timers, step.wait.timers, strict=True):
            state.timers.add(
                condition_id=condition.condition_id,
                firing_unix_timestamp_seconds=timer.firing_at,
                status=proto_enum(pb.InternalTimerStatus, timer.status),
            )
    encode_routing(state.wait_for_pull_routing, step.wait_for_routing)
    if step.invocation is not None:
        if step.invocation.last_failure is not None:
            encode_failure(state.last_failure_info, step.invocation.last_failure)
        if step.method is Method.EXECUTE:
            encode_routing(state.execute_pull_routing, step.invocation.routing)
        else:
            encode_routing(state.wait_for_pull_routing, step.invocation.routing)
    return state


def _condition(message: pb.WaitingConditionState, condition: WaitingCondition) -> None:
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
