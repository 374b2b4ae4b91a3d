from __future__ import annotations

from pathlib import Path

import pytest
from kernel_testing import (
    COMPLETE,
    FlowDriver,
    any_of,
    move,
    one,
    options,
    publishing,
    setting,
    start_with,
    timer,
    waiting_for,
)
from store_testing import StoredFlow, comparable, opened

from dex_embedded._kernel.inputs import (
    HeartbeatReceived,
    MethodFailed,
    SetAttributes,
    StartFlow,
    StopFlow,
    TaskDropped,
)
from dex_embedded._kernel.state import FlowRun
from dex_embedded._kernel.values import (
    AttributeWrite,
    CloseDecision,
    CloseType,
    Durability,
    Effects,
    Failure,
    FailureKind,
    FlowStatus,
    MessageDeletion,
    MethodOptions,
    RetryPolicy,
    RpcResult,
    Selection,
    StepOptions,
    StopType,
    WaitingType,
)
from dex_embedded._store import reading
from dex_embedded._store.records import dump_options, from_text, load_options, to_text
from dex_embedded._store.sqlite import SqliteStore

EVERYTHING = StepOptions(
    skip_wait_for=True,
    heartbeat_timeout=11,
    wait_for=MethodOptions(timeout=1, durability=Durability.ASYNC, proceed_on_failure=True),
    execute=MethodOptions(
        timeout=2,
        retry=RetryPolicy(
            initial_interval=1,
            backoff_coefficient=1.5,
            maximum_interval=2,
            maximum_attempts=3,
            total_duration=4,
        ),
        lock_keys=("k", "l/x"),
        selection=Selection(attribute_maps=("m/",), channels=("c",), channel_maps=("d/1",)),
    ),
    failure_step_type="F",
    failure_step_options=StepOptions(failure_step_options=StepOptions(wire=b"\x00\xff")),
    wire=bytes(range(256)),
)


@pytest.mark.parametrize("stored", [StepOptions(), EVERYTHING])
def test_options_come_back_as_they_were(stored: StepOptions) -> None:
    assert load_options(from_text(to_text(dump_options(stored)))) == stored


async def reloaded(store: SqliteStore, flow: StoredFlow) -> FlowRun:
    await flow.durable()
    return store.load(flow.run.key)


async def test_a_run_in_every_kind_of_phase_comes_back_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        start = StartFlow(
            flow_id="f",
            flow_type="T",
            request_id="r",
            start_step_type="A",
            start_step_input=b"\x00\xffinput",
            start_step_options=EVERYTHING,
            config=b"\x01config",
            default_durability=Durability.ASYNC,
        )
        flow = StoredFlow(store, start)
        assert await reloaded(store, flow) == flow.run
        waits = options(skip=False, locks=("w",))
        flow.execute(
            "A-1",
            move("Waiting", waits),
            move("Out"),
            move("BackOff", options(initial=5)),
            move("Ready"),
            move("Output"),
            move("Holder", options(locks=("x",))),
            move("LockedOut", options(locks=("x",))),
            effects=setting({"a": b"1", "m/x": b"\x00\xff", "m/y": b"2"}),
        )
        condition = waiting_for(
            WaitingType.ANY_COMBINATION_COMPLETED,
            timer(9, "t"),
            one("c", "c"),
            combinations=["t c", "c"],
        )
        flow.wait_for("Waiting-1", condition, step_locals=(("k", b"\xff"),))
        work = flow.hand_out("Out-1", worker="w1")
        flow.feed(HeartbeatReceived(ref=work.ref, value=b"\x40\x00"))
        failure = Failure(
            kind=FailureKind.WORKER_ERROR,
            detail="d",
            error_type="t",
            stack_trace="s",
            grpc_status=2,
            retry_after=7,
        )
        flow.fail("BackOff-1", failure)
        flow.execute(
            "Output-1",
            close=CloseDecision(
                type=CloseType.GRACEFUL_COMPLETE, close_input=b"\xffo", output=b"\xffo"
            ),
        )
        assert await reloaded(store, flow) == flow.run


async def test_a_delayed_start_comes_back_and_starts(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        flow = StoredFlow(store, start_with(options=EVERYTHING, start_delay=60))
        assert await reloaded(store, flow) == flow.run
        flow.advance(60)
        assert await reloaded(store, flow) == flow.run


async def test_condition_results_and_locals_come_back_for_execute(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        flow = StoredFlow(store)
        flow.publish("c", b"\x00\xff")
        flow.wait_for("A-1", any_of(one("c"), timer(5)), step_locals=(("k", b"v"),))
        assert await reloaded(store, flow) == flow.run
        flow = StoredFlow(
            store, start_with(flow_id="g", options=options(skip=False, attempts=1, on_failure="x"))
        )
        flow.fail("A-1")
        assert await reloaded(store, flow) == flow.run


async def test_a_snapshot_comes_back_although_everything_it_shows_has_changed(
    tmp_path: Path,
) -> None:
    load = Selection(attribute_maps=("m/", "n/1"), channels=("c",), channel_maps=("d/",))
    start = start_with(
        flow_id="f",
        options=options(load=load),
        attributes={"b": b"1", "m/x": b"1", "m/y": b"1", "n/1": b"1", "n/2": b"1", "a": b"1"},
    )
    async with opened(tmp_path) as store:
        flow = StoredFlow(store, start)
        flow.publish("c", b"1")
        flow.publish("d/1", b"2")
        first = flow.hand_out("A-1")
        deletions = tuple(
            MessageDeletion(channel=name, message_id=flow.message_ids(name)[0])
            for name in ("c", "d/1")
        )
        flow.rpc(
            RpcResult(
                effects=Effects(
                    attribute_writes=setting(
                        {"a": b"2", "b": None, "m/x": b"2", "m/y": None, "m/z": b"1", "n/1": b"2"}
                    ).attribute_writes,
                    deletions=deletions,
                    publications=publishing(("c", b"3")).publications,
                )
            )
        )
        flow.rpc(RpcResult(effects=setting({"a": b"3", "b": b"3", "m/x": None})))
        lost = Failure(kind=FailureKind.WORKER_LOST, detail="lost")
        flow.feed(MethodFailed(ref=first.ref, failure=lost))
        await flow.durable()
    async with opened(tmp_path) as store:
        loaded = store.load(flow.run.key)
        assert loaded == flow.run
        invocation = loaded.steps["A-1"].invocation
        assert invocation is not None
        assert invocation.snapshot == first.snapshot


async def test_a_loaded_run_fetches_map_entries_when_they_are_asked_for(tmp_path: Path) -> None:
    many = {f"m/{number}": b"%d" % number for number in range(50)}
    async with opened(tmp_path) as store:
        flow = StoredFlow(store, start_with(flow_id="f", attributes={"a": b"1", **many}))
        loaded = await reloaded(store, flow)
        assert [version.key for version in loaded.attributes.in_memory()] == ["a"]
        found = loaded.attributes.get("m/7")
        assert found is not None
        assert found.value == b"7"
        assert [version.key for version in loaded.attributes.in_memory()] == ["a", "m/7"]
        assert loaded == flow.run


async def test_one_map_entry_is_found_by_its_key_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        statements: list[str] = []
        store._reader._connection.set_trace_callback(statements.append)
        reading.StoredAttributes(store._reader, 1).entry("m/7")
        store._reader._connection.set_trace_callback(None)
        plan = store._reader.rows(f"EXPLAIN QUERY PLAN {statements[0]}")
        steps = [row[3] for row in plan]
        assert "SEARCH a USING PRIMARY KEY (run=? AND map=? AND key=?)" in steps
        assert "SEARCH v USING INTEGER PRIMARY KEY (rowid=?)" in steps


async def test_nothing_of_old_versions_stays_behind_when_no_snapshot_needs_them(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        load = Selection(channels=("c",))
        start = start_with(flow_id="f", options=options(load=load), attributes={"a": b"1"})
        flow = StoredFlow(store, start)
        flow.publish("c", b"1")
        [message_id] = flow.message_ids("c")
        flow.hand_out("A-1")
        flow.rpc(
            RpcResult(
                effects=Effects(
                    attribute_writes=setting({"a": b"2"}).attribute_writes,
                    deletions=(MessageDeletion(channel="c", message_id=message_id),),
                )
            )
        )
        await flow.durable()
        assert counts(store) == {"attribute": 2, "message": 1, "step": 1}
        flow.feed(TaskDropped(ref=flow.step("A-1").ref))
        flow.execute("A-1", move("B"), effects=setting({"a": b"3"}))
        await flow.durable()
        assert counts(store) == {"attribute": 1, "message": 0, "step": 1}


def counts(store: SqliteStore) -> dict[str, int]:
    return {
        table: store._reader.rows(f"SELECT count(*) FROM {table}")[0][0]
        for table in ("attribute", "message", "step")
    }


async def test_a_hard_deleted_value_leaves_no_row(tmp_path: Path) -> None:
    secret = b"\x1a\x06secret"
    async with opened(tmp_path) as store:
        flow = StoredFlow(store, start_with(flow_id="f", options=options()))
        flow.hand_out("A-1")
        for number, value in enumerate((secret + b"1", secret + b"2", None)):
            write = AttributeWrite(key="s", value=value, hard_delete=True)
            flow.feed(SetAttributes(writes=(write,), request_id=f"{number}"))
            assert (await reloaded(store, flow)).attributes == flow.run.attributes
        rows = store._reader.rows("SELECT value FROM attribute_value")
        assert rows == []


async def test_history_is_read_in_pages_and_values_by_version(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        flow = StoredFlow(store, start_with(flow_id="f", options=options()))
        other = StoredFlow(store, start_with(flow_id="g", options=options()))
        flow.execute("A-1", move("B"), effects=setting({"a": b"1"}))
        flow.execute("B-1", close=COMPLETE, effects=setting({"a": b"2"}))
        await flow.durable()
        key = flow.run.key
        assert [event.event_id for event in store.history(key, 0, 100)] == [1, 2, 3, 4]
        assert [event.payload for event in store.history(key, 2, 2)] == [
            b"2 StepExecuteCompleted",
            b"3 StepExecuteCompleted",
        ]
        assert store.last_event_id(key) == 4
        assert store.last_event_id(other.run.key) == 1
        assert store.last_event_id(999) == 0
        assert store.attribute_values(key, [1, 2, 3]) == {1: b"1", 2: b"2"}


async def test_an_empty_run_id_means_the_current_or_latest_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        first = StoredFlow(store, start_with(flow_id="f"))
        first.feed(StopFlow())
        second = StoredFlow(store, start_with(flow_id="f"))
        second.now += 10
        await second.durable()
        latest = store.summary("f")
        assert latest is not None
        assert latest.key == second.run.key
        second.feed(StopFlow(type=StopType.FAIL))
        await second.durable()
        latest = store.summary("f")
        assert latest is not None
        assert (latest.key, latest.status, latest.closed_at) == (
            second.run.key,
            FlowStatus.FAILED,
            second.now,
        )
        assert store.summary("f", "no such run") is None
        assert store.summary("g") is None
        with pytest.raises(KeyError):
            store.load(999)


async def test_runs_are_found_by_an_earlier_run_id(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        first = StoredFlow(store, start_with(flow_id="f"))
        first.feed(StopFlow())
        await first.durable()
        run_id = first.run.run_id
        found = store.summary("f", run_id)
        assert found is not None
        assert found.status is FlowStatus.CANCELED


async def test_only_runs_with_something_in_progress_need_recovery(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        busy = StoredFlow(store)
        handed_out = StoredFlow(store)
        handed_out.hand_out("A-1")
        parked = StoredFlow(store)
        parked.wait_for("A-1", any_of(one("c")))
        deadline = StoredFlow(store)
        deadline.wait_for("A-1", any_of(one("c"), timer(50)))
        later = StoredFlow(store)
        later.wait_for("A-1", any_of(timer(500)))
        backing_off = StoredFlow(store)
        backing_off.fail("A-1")
        closed = StoredFlow(store)
        closed.feed(StopFlow())
        await closed.durable()
        recover = {run.flow_id for run in store.runs_to_recover()}
        assert recover == {busy.run.flow_id, handed_out.run.flow_id}
        now = FlowDriver().now
        assert [(at, run.flow_id) for at, run in store.wakes(now + 100, 10)] == [
            (now + 1, backing_off.run.flow_id),
            (now + 50, deadline.run.flow_id),
        ]
        assert len(store.wakes(now + 1_000, 10)) == 3
        assert len(store.wakes(now + 1_000, 1)) == 1


async def test_run_keys_are_never_given_twice(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        keys = [store.new_run_key(), store.new_run_key()]
        flow = StoredFlow(store)
        await flow.durable()
        store._writer.execute("DELETE FROM run")
    async with opened(tmp_path) as store:
        assert store.new_run_key() > max(*keys, flow.run.key)


async def test_calls_in_flight_are_forgotten_by_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        flow = StoredFlow(store)
        flow.start_rpc(locks=("k",))
        assert await reloaded(store, flow) == comparable(flow.run)
