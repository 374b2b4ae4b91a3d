"""Calls of clients: RPCs, and the direct ones on channels, attributes, timers and config."""

from __future__ import annotations

from dex_embedded._kernel.deciding import cancel_selected
from dex_embedded._kernel.draft import Draft
from dex_embedded._kernel.errors import (
    ChannelMessageNotFoundError,
    FlowNotActiveError,
    InvalidRequestError,
    InvalidResultError,
    KernelError,
    LockConflictError,
    StaleInputError,
    quoted,
)
from dex_embedded._kernel.events import ChannelDeleted, ChannelPublished, RpcCompleted
from dex_embedded._kernel.execution import start_steps
from dex_embedded._kernel.inputs import (
    DeleteChannelMessage,
    PublishToChannel,
    RecordedRequest,
    RpcFailed,
    RpcStarted,
    RpcSucceeded,
    SetAttributes,
    SkipTimer,
    UpdateConfig,
)
from dex_embedded._kernel.settling import settle
from dex_embedded._kernel.snapshot import take_snapshot
from dex_embedded._kernel.state import FlowRun, RpcCall
from dex_embedded._kernel.transition import (
    Moment,
    Outcome,
    RpcCommitted,
    RpcDispatch,
    RpcJoined,
    RpcRefused,
    RpcRepeated,
    Transition,
)
from dex_embedded._kernel.validation import (
    check_channel,
    check_rpc_result,
    check_selection,
    check_writes,
    normalised,
)
from dex_embedded._kernel.values import (
    RPC_FROM_PREFIX,
    Effects,
    MessageDeletion,
    RpcResult,
    TimerStatus,
)


def require_active(run: FlowRun) -> None:
    """Raises `FlowNotActiveError` for a closed run."""
    if not run.is_active:
        raise FlowNotActiveError(run.flow_id)


# --- RPCs ------------------------------------------------------------------------------------


def start_rpc(run: FlowRun, call: RpcStarted, moment: Moment) -> Transition:
    """Accept an RPC: take its locks and its snapshot, or say that it needs no worker."""
    if not call.rpc_name:
        raise InvalidRequestError("the RPC name is empty")
    if not call.request_id:
        raise InvalidRequestError("request id is empty")
    if "" in call.lock_keys:
        raise InvalidRequestError("a lock key is empty")
    selection = normalised(call.selection)
    check_selection(selection)
    if not call.is_update:
        return Transition(
            run=run,
            outcome=RpcDispatch(snapshot=take_snapshot(run, selection)),
            wake_at=run.wake_at if run.is_active else None,
        )
    if call.recorded is not None:
        return _unchanged(run, RpcRepeated(output=call.recorded.output))
    require_active(run)
    for running in run.rpcs.values():
        if running.request_id == call.request_id:
            return _unchanged(run, RpcJoined(call_id=running.call_id))
    keys = tuple(sorted(set(call.lock_keys)))
    held = tuple(key for key in keys if key in run.locks)
    if held:
        raise LockConflictError(held)
    run.rpcs[call.call_id] = RpcCall(
        call_id=call.call_id, request_id=call.request_id, lock_keys=keys
    )
    for key in keys:
        run.locks[key] = f"rpc:{call.call_id}"
    return _unchanged(run, RpcDispatch(snapshot=take_snapshot(run, selection)))


def complete_rpc(run: FlowRun, message: RpcSucceeded, moment: Moment) -> Transition:
    """Commit what an RPC handler answered, or refuse it and free the locks."""
    call, result = message.call, message.result
    if call.is_update and call.call_id not in run.rpcs:
        raise StaleInputError(f"RPC call {call.call_id} is over")
    refusal = _refusal(run, call, result, moment)
    draft = Draft(run, moment)
    _end_call(draft, call)
    if refusal is not None:
        settle(draft)
        return draft.finish(RpcRefused(error=refusal))
    outcome = RpcCommitted(output=result.output)
    if not call.is_update and not result.has_effects:
        return draft.finish(outcome)
    writes, published = draft.apply(result.effects)
    draft.add_event(
        RpcCompleted(
            rpc_name=call.rpc_name,
            input=call.input,
            result=result,
            writes=writes,
            published=published,
            served_by=message.served_by,
        )
    )
    if call.is_update:
        draft.record_request(RecordedRequest(request_id=call.request_id, output=result.output))
    if result.decision is not None:
        cancel_selected(draft, result.decision, "")
        start_steps(draft, result.decision.next_steps, RPC_FROM_PREFIX + call.rpc_name)
    settle(draft)
    return draft.finish(outcome)


def fail_rpc(run: FlowRun, message: RpcFailed, moment: Moment) -> Transition:
    """An RPC ended without a result: others may have its locks."""
    if message.call.call_id not in run.rpcs:
        return _unchanged(run, None)
    draft = Draft(run, moment)
    _end_call(draft, message.call)
    settle(draft)
    return draft.finish()


def _refusal(
    run: FlowRun, call: RpcStarted, result: RpcResult, moment: Moment
) -> KernelError | None:
    """Why the result cannot be applied, if it cannot."""
    try:
        check_rpc_result(result, moment.limits)
    except KernelError as error:
        return InvalidResultError(f"RPC {quoted(call.rpc_name)}: {error}")
    if not run.is_active and (call.is_update or result.has_effects):
        return FlowNotActiveError(run.flow_id)
    if call.is_update:
        missing = _missing_message(run, result.effects)
        if missing is not None:
            return ChannelMessageNotFoundError(missing.channel, missing.message_id)
    return None


def _missing_message(run: FlowRun, effects: Effects) -> MessageDeletion | None:
    """The first deletion whose message is not pending, or is deleted twice."""
    seen: set[MessageDeletion] = set()
    for deletion in effects.deletions:
        if deletion in seen or not _is_pending(run, deletion):
            return deletion
        seen.add(deletion)
    return None


def _is_pending(run: FlowRun, deletion: MessageDeletion) -> bool:
    queue = run.channels.get(deletion.channel, ())
    return any(message.message_id == deletion.message_id for message in queue)


def _end_call(draft: Draft, call: RpcStarted) -> None:
    running = draft.run.rpcs.pop(call.call_id, None)
    if running is not None:
        for key in running.lock_keys:
            del draft.run.locks[key]


def _unchanged(run: FlowRun, outcome: Outcome) -> Transition:
    return Transition(run=run, outcome=outcome, wake_at=run.wake_at if run.is_active else None)


# --- direct calls ----------------------------------------------------------------------------


def publish(run: FlowRun, message: PublishToChannel, moment: Moment) -> Transition:
    require_active(run)
    for publication in message.messages:
        check_channel(publication.channel)
    draft = Draft(run, moment)
    published = draft.publish(message.messages)
    if published:
        draft.add_event(ChannelPublished(messages=published))
    settle(draft)
    return draft.finish(published)


def delete_message(run: FlowRun, message: DeleteChannelMessage, moment: Moment) -> Transition:
    if message.recorded is not None:
        return _unchanged(run, None)
    require_active(run)
    deletion = message.deletion
    check_channel(deletion.channel)
    if not message.request_id:
        raise InvalidRequestError("request id is empty")
    if not _is_pending(run, deletion):
        raise ChannelMessageNotFoundError(deletion.channel, deletion.message_id)
    draft = Draft(run, moment)
    draft.delete_messages([deletion])
    draft.add_event(ChannelDeleted(deletions=(deletion,)))
    draft.record_request(RecordedRequest(request_id=message.request_id, output=None))
    settle(draft)
    return draft.finish()


def set_attributes(run: FlowRun, message: SetAttributes, moment: Moment) -> Transition:
    if message.recorded is not None:
        return _unchanged(run, None)
    require_active(run)
    if not message.request_id:
        raise InvalidRequestError("request id is empty")
    check_writes(message.writes)
    draft = Draft(run, moment)
    writes = draft.write_attributes(message.writes)
    effects = Effects(attribute_writes=message.writes)
    draft.add_event(
        RpcCompleted(
            rpc_name="",
            input=None,
            result=RpcResult(effects=effects),
            writes=writes,
            published=(),
            is_set_attributes=True,
        )
    )
    draft.record_request(RecordedRequest(request_id=message.request_id, output=None))
    settle(draft)
    return draft.finish()


def skip_timer(run: FlowRun, message: SkipTimer, moment: Moment) -> Transition:
    require_active(run)
    step = run.steps.get(message.step_execution_id)
    wait = step.wait if step is not None else None
    if step is None or wait is None:
        raise _no_such_timer(message)
    timers = wait.condition.timers
    if message.index is not None:
        index = message.index
    else:
        ids = [timer.condition_id for timer in timers]
        if not message.condition_id or message.condition_id not in ids:
            raise _no_such_timer(message)
        index = ids.index(message.condition_id)
    if not 0 <= index < len(timers) or wait.timers[index].status is not TimerStatus.PENDING:
        raise _no_such_timer(message)
    draft = Draft(run, moment)
    wait.timers[index].status = TimerStatus.SKIPPED
    draft.touch(step)
    settle(draft)
    return draft.finish()


def _no_such_timer(message: SkipTimer) -> InvalidRequestError:
    named = quoted(message.condition_id) if message.condition_id else f"number {message.index}"
    return InvalidRequestError(
        f"timer {named} of step execution {quoted(message.step_execution_id)}"
        " does not exist or is not pending"
    )


def update_config(run: FlowRun, message: UpdateConfig, moment: Moment) -> Transition:
    require_active(run)
    draft = Draft(run, moment)
    run.config = message.config
    run.default_durability = message.default_durability
    draft.change_header(bulk=True)
    return draft.finish()
