from __future__ import annotations

import pytest
from kernel_testing import (
    COMPLETE,
    FlowDriver,
    any_of,
    dispatched,
    execute_result,
    move,
    one,
    options,
    publishing,
    setting,
    start_with,
    withdrawn,
)

from dex_embedded._kernel.errors import (
    ChannelMessageNotFoundError,
    FlowNotActiveError,
    InvalidRequestError,
    InvalidResultError,
    LockConflictError,
    StaleInputError,
)
from dex_embedded._kernel.events import ChannelDeleted, ChannelPublished, RpcCompleted
from dex_embedded._kernel.inputs import (
    DeleteChannelMessage,
    ExecuteSucceeded,
    MethodFailed,
    PublishToChannel,
    RecordedRequest,
    RpcFailed,
    RpcStarted,
    RpcSucceeded,
    SetAttributes,
    StopFlow,
    UpdateConfig,
)
from dex_embedded._kernel.state import Phase
from dex_embedded._kernel.transition import (
    RecordRequest,
    RpcCommitted,
    RpcDispatch,
    RpcJoined,
    RpcRefused,
    RpcRepeated,
    WithdrawRpc,
)
from dex_embedded._kernel.values import (
    Effects,
    Failure,
    FailureKind,
    MessageDeletion,
    Publication,
    RpcResult,
    Selection,
    StepDecision,
)


def refusal(transition: object) -> Exception:
    outcome = getattr(transition, "outcome", None)
    assert isinstance(outcome, RpcRefused)
    return outcome.error


def deleting(channel: str, *message_ids: str) -> Effects:
    return Effects(
        deletions=tuple(MessageDeletion(channel=channel, message_id=i) for i in message_ids)
    )


def test_a_query_without_effects_writes_nothing() -> None:
    flow = FlowDriver(start_with(attributes={"a": b"1"}))
    transition = flow.rpc(RpcResult(output=b"o"), transactional=False)
    assert transition.outcome == RpcCommitted(output=b"o")
    assert transition.changes == []


def test_a_query_runs_on_a_closed_run_and_one_with_effects_finds_it_closed() -> None:
    flow = FlowDriver(start_with(attributes={"a": b"1"}))
    call = flow.start_rpc(transactional=False)
    flow.feed(StopFlow())
    effects = RpcResult(output=b"o", effects=setting({"a": b"2"}))
    assert isinstance(
        refusal(flow.feed(RpcSucceeded(call=call, result=effects))), FlowNotActiveError
    )
    assert flow.attributes() == {"a": b"1"}
    flow.rpc(RpcResult(output=b"o"), transactional=False)


def test_an_update_needs_an_active_run_before_its_handler_runs() -> None:
    flow = FlowDriver()
    flow.feed(StopFlow())
    with pytest.raises(FlowNotActiveError):
        flow.start_rpc(transactional=True)
    with pytest.raises(FlowNotActiveError):
        flow.start_rpc(transactional=False, locks=("k",))


def test_the_snapshot_of_a_call_is_what_it_selects() -> None:
    flow = FlowDriver(
        start_with(attributes={"b": b"1", "a": b"1", "m/x": b"1", "m/y": b"1", "n/z": b"1"})
    )
    flow.publish("c", b"1", b"2")
    flow.publish("d", b"3")
    transition = flow.feed(
        RpcStarted(
            call_id="call",
            rpc_name="r",
            request_id="q",
            input=b"",
            selection=Selection(
                attribute_maps=("m/x", "m/", "m/x", "n/no"),
                channels=("empty", "c"),
                channel_maps=("k/", "k/1"),
            ),
        )
    )
    assert isinstance(transition.outcome, RpcDispatch)
    snapshot = transition.outcome.snapshot
    assert [version.key for version in snapshot.attributes] == ["a", "b", "m/x", "m/y"]
    assert snapshot.channel_sizes == (("c", 2), ("d", 1))
    assert [name for name, _ in snapshot.messages] == ["c"]
    assert snapshot.selection == Selection(
        attribute_maps=("m/", "m/x", "n/no"), channels=("c", "empty"), channel_maps=("k/", "k/1")
    )


def test_all_instances_of_a_channel_map_load_by_prefix() -> None:
    flow = FlowDriver()
    flow.publish("k/1", b"1")
    flow.publish("k/2", b"2")
    flow.publish("kk", b"3")
    call = flow.feed(
        RpcStarted(
            call_id="call",
            rpc_name="r",
            request_id="q",
            input=b"",
            selection=Selection(channel_maps=("k/",)),
        )
    )
    assert isinstance(call.outcome, RpcDispatch)
    assert [name for name, _ in call.outcome.snapshot.messages] == ["k/1", "k/2"]


@pytest.mark.parametrize(
    "selection",
    [
        Selection(attribute_maps=("plain",)),
        Selection(attribute_maps=("/x",)),
        Selection(channel_maps=("a/b/c",)),
        Selection(channels=("a/b",)),
        Selection(channels=("",)),
    ],
)
def test_a_selection_that_names_nothing_is_refused(selection: Selection) -> None:
    with pytest.raises(InvalidRequestError):
        FlowDriver().start_rpc(selection=selection)


def test_effects_of_an_rpc_are_one_transition_with_its_steps_and_cancellations() -> None:
    flow = FlowDriver(start_with(options=options()))
    ready = flow.step("A-1").ref
    result = RpcResult(
        output=b"o",
        effects=Effects(
            attribute_writes=setting({"a": b"1"}).attribute_writes,
            publications=publishing(("c", b"1")).publications,
        ),
        decision=StepDecision(next_steps=(move("B"),), cancel_step_types=("A",)),
    )
    transition = flow.rpc(result)
    assert flow.attributes() == {"a": b"1"}
    assert flow.channel("c") == [b"1"]
    assert withdrawn(transition) == [ready]
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["B-1"]
    event = flow.events[-1]
    assert isinstance(event, RpcCompleted)
    assert (event.rpc_name, event.input, event.served_by) == ("r", b"in", "worker")


def test_an_rpc_can_wake_a_wait_in_its_own_transition() -> None:
    flow = FlowDriver()
    flow.wait_for("A-1", any_of(one("c")))
    transition = flow.rpc(RpcResult(effects=publishing(("c", b"1"))), transactional=False)
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["A-1"]


def test_a_transactional_deletion_of_a_missing_message_applies_nothing() -> None:
    flow = FlowDriver()
    flow.publish("c", b"1")
    [message_id] = flow.message_ids("c")
    for effects in (deleting("c", message_id, "gone"), deleting("c", message_id, message_id)):
        transition = flow.rpc(RpcResult(output=b"o", effects=effects))
        assert isinstance(refusal(transition), ChannelMessageNotFoundError)
        assert flow.channel("c") == [b"1"]
    flow.rpc(RpcResult(output=b"o", effects=deleting("c", message_id)))
    assert flow.channel("c") == []


def test_a_query_ignores_a_missing_message_and_applies_the_rest() -> None:
    flow = FlowDriver()
    effects = Effects(
        deletions=deleting("c", "gone").deletions,
        attribute_writes=setting({"a": b"1"}).attribute_writes,
    )
    flow.rpc(RpcResult(effects=effects), transactional=False)
    assert flow.attributes() == {"a": b"1"}


def test_a_repeated_request_id_gets_the_recorded_result() -> None:
    flow = FlowDriver()
    transition = flow.rpc(RpcResult(output=b"first"), request_id="q")
    [record] = [c.request for c in transition.changes if isinstance(c, RecordRequest)]
    repeat = RpcStarted(
        call_id="again",
        rpc_name="r",
        request_id="q",
        input=b"in",
        transactional=True,
        recorded=record,
    )
    assert flow.feed(repeat).outcome == RpcRepeated(output=b"first")


def test_a_request_id_in_flight_is_joined() -> None:
    flow = FlowDriver()
    running = flow.start_rpc(request_id="q", locks=("k",))
    repeat = RpcStarted(
        call_id="again",
        rpc_name="r",
        request_id="q",
        input=b"in",
        lock_keys=("k",),
    )
    assert flow.feed(repeat).outcome == RpcJoined(call_id=running.call_id)


def test_a_failed_call_is_not_remembered_and_frees_its_locks() -> None:
    flow = FlowDriver()
    call = flow.start_rpc(locks=("k",), request_id="q")
    transition = flow.feed(RpcFailed(call=call))
    assert transition.changes == []
    flow.start_rpc(locks=("k",), request_id="q")


@pytest.mark.parametrize(
    "decision",
    [
        StepDecision(close=COMPLETE),
        StepDecision(cancel_sibling_step_types=("A",)),
        StepDecision(cancel_step_types=("",)),
        StepDecision(next_steps=(move(""),)),
    ],
)
def test_an_invalid_rpc_result_is_refused_and_frees_its_locks(decision: StepDecision) -> None:
    flow = FlowDriver()
    call = flow.start_rpc(locks=("k",))
    result = RpcResult(effects=setting({"a": b"1"}), decision=decision)
    transition = flow.feed(RpcSucceeded(call=call, result=result))
    assert isinstance(refusal(transition), InvalidResultError)
    assert flow.attributes() == {}
    assert flow.run.locks == {}


def test_a_call_under_which_the_run_closed_is_withdrawn_and_its_late_result_is_stale() -> None:
    flow = FlowDriver()
    call = flow.start_rpc()
    transition = flow.feed(StopFlow())
    assert WithdrawRpc(call_id=call.call_id) in transition.commands
    with pytest.raises(StaleInputError):
        flow.feed(RpcSucceeded(call=call, result=RpcResult(output=b"o")))


# --- locks -----------------------------------------------------------------------------------


def test_an_rpc_that_wants_a_held_key_fails_at_once() -> None:
    flow = FlowDriver()
    flow.start_rpc(locks=("k", "l"))
    with pytest.raises(LockConflictError) as caught:
        flow.start_rpc(locks=("k", "m"))
    assert caught.value.keys == ("k",)
    flow.start_rpc(locks=("m",))


def test_a_step_holds_its_locks_over_all_attempts_and_back_offs() -> None:
    flow = FlowDriver(start_with(options=options(locks=("k",))))
    with pytest.raises(LockConflictError):
        flow.start_rpc(locks=("k",))
    flow.fail("A-1")
    assert flow.step("A-1").phase is Phase.BACKING_OFF
    with pytest.raises(LockConflictError):
        flow.start_rpc(locks=("k",))
    flow.advance(1)
    flow.execute("A-1")
    flow.start_rpc(locks=("k",))


def test_a_step_waits_for_its_locks_without_using_attempts_and_sees_the_last_write() -> None:
    locked = options(locks=("k",))
    flow = FlowDriver(start_with(options=options(), attributes={"a": b"1"}))
    transition = flow.execute("A-1", move("B", locked), move("C", locked))
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["B-1"]
    assert flow.step("C-1").phase is Phase.LOCKED_OUT
    flow.fail("B-1")
    flow.advance(1)
    flow.now += 1_000
    transition = flow.execute("B-1", effects=setting({"a": b"2"}))
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["C-1"]
    work = flow.hand_out("C-1")
    assert (work.ref.attempt, work.first_attempt_at) == (1, flow.now)
    assert [version.value for version in work.snapshot.attributes] == [b"2"]


def test_steps_get_locks_first_come_first_served_and_all_or_none() -> None:
    flow = FlowDriver(start_with(options=options()))
    call = flow.start_rpc(locks=("x",))
    flow.execute(
        "A-1",
        move("B", options(locks=("x", "y"))),
        move("C", options(locks=("y",))),
        move("D", options(locks=("z",))),
    )
    # C could have its key, but B came first and wants it.
    assert {step.id: step.phase for step in flow.run.steps.values()} == {
        "B-1": Phase.LOCKED_OUT,
        "C-1": Phase.LOCKED_OUT,
        "D-1": Phase.READY,
    }
    transition = flow.feed(RpcFailed(call=call))
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["B-1"]


def test_a_waiting_step_does_not_keep_an_rpc_from_a_free_key() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.start_rpc(locks=("x",))
    flow.execute("A-1", move("B", options(locks=("x", "y"))))
    flow.start_rpc(locks=("y",))


def test_locks_are_free_while_a_step_waits_for_its_condition() -> None:
    flow = FlowDriver(start_with(options=options(skip=False, locks=("k",))))
    flow.wait_for("A-1", any_of(one("c")))
    flow.start_rpc(locks=("k",))
    flow.publish("c", b"1")
    assert flow.step("A-1").phase is Phase.LOCKED_OUT


def test_a_cancelled_step_passes_its_locks_on() -> None:
    flow = FlowDriver(start_with(options=options()))
    locked = options(locks=("k",))
    flow.execute("A-1", move("B", locked), move("C", locked), move("D"))
    transition = flow.execute("D-1", cancel=("B",))
    assert [ref.step_execution_id for ref in dispatched(transition)] == ["C-1"]


# --- direct calls ----------------------------------------------------------------------------


def test_published_messages_get_ids_and_one_event() -> None:
    flow = FlowDriver()
    transition = flow.publish("c", b"1", b"2")
    published = transition.outcome
    assert isinstance(published, tuple)
    assert [message.value for message in published] == [b"1", b"2"]
    assert isinstance(flow.events[-1], ChannelPublished)
    with pytest.raises(InvalidRequestError):
        flow.feed(PublishToChannel(messages=(Publication(channel="", value=b"1"),)))


def test_a_direct_deletion_removes_one_message_and_repeats_harmlessly() -> None:
    flow = FlowDriver()
    flow.publish("c", b"1", b"2")
    first, _ = flow.message_ids("c")
    deletion = MessageDeletion(channel="c", message_id=first)
    flow.feed(DeleteChannelMessage(deletion=deletion, request_id="q"))
    assert flow.channel("c") == [b"2"]
    assert isinstance(flow.events[-1], ChannelDeleted)
    with pytest.raises(ChannelMessageNotFoundError):
        flow.feed(DeleteChannelMessage(deletion=deletion, request_id="other"))
    record = RecordedRequest(request_id="q", output=None)
    repeated = DeleteChannelMessage(deletion=deletion, request_id="q", recorded=record)
    assert flow.feed(repeated).changes == []


def test_direct_attribute_writes_are_one_transition_and_repeat_harmlessly() -> None:
    flow = FlowDriver(start_with(attributes={"a": b"1"}))
    message = SetAttributes(writes=setting({"a": None, "b": b"2"}).attribute_writes, request_id="q")
    transition = flow.feed(message)
    assert flow.attributes() == {"b": b"2"}
    assert transition.written_keys == ["a", "b"]
    event = flow.events[-1]
    assert isinstance(event, RpcCompleted)
    assert (event.is_set_attributes, event.rpc_name) == (True, "")


def test_a_config_update_affects_later_work_only() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.feed(UpdateConfig(config=b"new"))
    assert flow.run.config == b"new"
    assert len(flow.events) == 1


def test_direct_calls_need_an_active_run() -> None:
    flow = FlowDriver()
    flow.publish("c", b"1")
    [message_id] = flow.message_ids("c")
    flow.feed(StopFlow())
    deletion = MessageDeletion(channel="c", message_id=message_id)
    for message in (
        PublishToChannel(messages=(Publication(channel="c", value=b"2"),)),
        DeleteChannelMessage(deletion=deletion, request_id="q"),
        SetAttributes(writes=(), request_id="q"),
        UpdateConfig(config=b""),
    ):
        with pytest.raises(FlowNotActiveError):
            flow.feed(message)
    assert flow.channel("c") == [b"1"]


def test_messages_of_a_snapshot_outlive_their_deletion() -> None:
    load = Selection(channels=("c",))
    flow = FlowDriver(start_with(options=options(load=load)))
    flow.publish("c", b"1")
    [message_id] = flow.message_ids("c")
    first = flow.hand_out("A-1")
    flow.rpc(RpcResult(effects=deleting("c", message_id)))
    assert [m.value for m in flow.run.retained.values()] == [b"1"]
    lost = Failure(kind=FailureKind.WORKER_LOST, detail="gone")
    flow.feed(MethodFailed(ref=first.ref, failure=lost))
    again = flow.hand_out("A-1")
    assert again.snapshot == first.snapshot
    flow.feed(ExecuteSucceeded(ref=again.ref, result=execute_result()))
    assert flow.run.retained == {}
