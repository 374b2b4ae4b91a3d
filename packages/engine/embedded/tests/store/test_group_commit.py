from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from kernel_testing import start_with
from store_testing import StoredFlow, open_test_store, opened

from dex_embedded._kernel.inputs import RecordedRequest
from dex_embedded._kernel.values import RpcResult
from dex_embedded._store import group_commit
from dex_embedded._store.errors import StoreFailedError
from dex_embedded._store.group_commit import GroupCommit


class HeldExecutor(Executor):
    """Runs what is submitted only when told to."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []
        self.submitted = asyncio.Event()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, fn, args))
        self.submitted.set()
        return future

    def release(self) -> None:
        """Run the oldest held call."""
        future, function, arguments = self.held.pop(0)
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)


class Bench:
    """A GroupCommit over a table of numbers, with COMMITs under control."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=0
        )
        self.connection.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER CHECK (n < 100))")
        self.executor = HeldExecutor()
        self.failures: list[BaseException] = []
        self.commits = GroupCommit(self.connection, self.executor, self.failures.append)
        self.told: list[int] = []
        self.path = path

    def stage(self, number: int) -> None:
        ticket = self.commits.stage([("INSERT INTO t VALUES (?)", (number,))])
        ticket.add_callback(lambda: self.told.append(number))

    def committed(self) -> list[int]:
        with sqlite3.connect(self.path, timeout=0) as other:
            return [row[0] for row in other.execute("SELECT n FROM t ORDER BY rowid")]


async def turn() -> None:
    """Let the loop run what is scheduled."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "numbers")


async def test_everything_staged_in_one_turn_of_the_loop_is_one_commit(bench: Bench) -> None:
    for number in range(5):
        bench.stage(number)
    await turn()
    assert len(bench.executor.held) == 1
    assert bench.told == []
    bench.executor.release()
    await turn()
    assert bench.told == [0, 1, 2, 3, 4]
    assert bench.commits.commits == 1


async def test_rows_that_arrive_during_a_commit_wait_for_the_next_one(bench: Bench) -> None:
    bench.stage(1)
    await turn()
    bench.stage(2)
    bench.stage(3)
    await turn()
    assert len(bench.executor.held) == 1
    bench.executor.release()
    await turn()
    assert bench.told == [1]
    assert bench.committed() == [1]
    bench.executor.release()
    await turn()
    assert bench.told == [1, 2, 3]
    assert bench.commits.commits == 2


async def test_what_a_callback_stages_joins_the_next_commit_behind_what_waited(
    bench: Bench,
) -> None:
    ticket = bench.commits.stage([("INSERT INTO t VALUES (1)", ())])
    ticket.add_callback(lambda: bench.stage(3))
    await turn()
    bench.stage(2)
    bench.executor.release()
    await turn()
    bench.executor.release()
    await turn()
    assert bench.committed() == [1, 2, 3]
    assert bench.commits.commits == 2


async def test_work_that_is_not_hurried_goes_with_the_next_commit_somebody_waits_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "UNHURRIED_SECONDS", 60.0)
    soft = bench.commits.stage([("INSERT INTO t VALUES (1)", ())], hurried=False)
    await turn()
    assert bench.executor.held == []
    bench.stage(2)
    await turn()
    bench.executor.release()
    await turn()
    assert soft.is_durable
    assert bench.committed() == [1, 2]


async def test_work_that_is_not_hurried_is_committed_in_the_end(bench: Bench) -> None:
    soft = bench.commits.stage([("INSERT INTO t VALUES (1)", ())], hurried=False)
    async with asyncio.timeout(30):
        await bench.executor.submitted.wait()
    bench.executor.release()
    await soft.wait()
    assert bench.committed() == [1]


async def test_a_failed_read_during_a_commit_leaves_the_commit_alone(bench: Bench) -> None:
    bench.stage(1)
    await turn()
    bench.commits.fail(sqlite3.DatabaseError("malformed"), "read")
    bench.executor.release()
    await turn()
    assert bench.told == [1]
    assert bench.committed() == [1]
    with pytest.raises(StoreFailedError, match="could not be read"):
        bench.stage(2)


async def test_work_without_rows_is_durable_with_what_came_before_it(bench: Bench) -> None:
    assert bench.commits.stage([]).is_durable
    bench.stage(1)
    empty = bench.commits.stage([])
    assert not empty.is_durable
    await turn()
    bench.executor.release()
    await turn()
    assert empty.is_durable


async def test_a_cancelled_waiter_disturbs_nobody(bench: Bench) -> None:
    ticket = bench.commits.stage([("INSERT INTO t VALUES (1)", ())])
    first = asyncio.ensure_future(ticket.wait())
    second = asyncio.ensure_future(ticket.wait())
    await turn()
    first.cancel()
    await turn()
    bench.executor.release()
    await second
    assert ticket.is_durable


async def test_a_broken_callback_keeps_no_other_from_being_called(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    ticket = bench.commits.stage([("INSERT INTO t VALUES (1)", ())])
    ticket.add_callback(lambda: 1 / 0)  # type: ignore[arg-type]  # broken on purpose
    bench.stage(2)
    await turn()
    bench.executor.release()
    await turn()
    assert bench.told == [2]
    assert "durable transition" in caplog.text


async def test_a_failed_statement_stops_everything_and_nothing_is_acknowledged(
    bench: Bench,
) -> None:
    bench.stage(1)
    with pytest.raises(StoreFailedError):
        bench.stage(100)
    with pytest.raises(StoreFailedError):
        bench.stage(2)
    await turn()
    assert bench.told == []
    assert len(bench.failures) == 1
    assert bench.committed() == []


async def test_a_failed_commit_stops_everything_and_waiters_learn_of_it(bench: Bench) -> None:
    bench.stage(1)
    ticket = bench.commits.stage([("INSERT INTO t VALUES (2)", ())])
    waiter = asyncio.ensure_future(ticket.wait())
    await turn()
    bench.stage(3)
    future, _, _ = bench.executor.held.pop()
    future.set_exception(sqlite3.OperationalError("database or disk is full"))
    await turn()
    with pytest.raises(StoreFailedError, match="disk is full"):
        await waiter
    with pytest.raises(StoreFailedError):
        await ticket.wait()
    assert len(bench.failures) == 1
    assert bench.told == []
    await bench.commits.drain()


async def test_rows_that_fail_after_a_good_commit_take_only_themselves_down(bench: Bench) -> None:
    bench.stage(1)
    await turn()
    bench.stage(100)
    bench.executor.release()
    await turn()
    assert bench.told == [1]
    assert len(bench.failures) == 1
    assert bench.committed() == [1]


async def test_statements_run_on_the_loop_and_commits_do_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        threads: set[int] = set()
        store._writer.set_trace_callback(
            lambda sql: threads.add(threading.get_ident()) if sql == "COMMIT" else None
        )
        await StoredFlow(store).durable()
        store._writer.set_trace_callback(None)
        assert threads
        assert threading.get_ident() not in threads


async def test_many_flows_share_commits(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        flows = [StoredFlow(store) for _ in range(100)]
        await asyncio.gather(*(flow.durable() for flow in flows))
        assert store.commits == 1


async def test_a_recorded_request_is_seen_before_it_is_durable_and_after(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        flow = StoredFlow(store)
        flow.rpc(RpcResult(output=b"o"), request_id="q")
        record = RecordedRequest(request_id="q", output=b"o")
        assert store.request(flow.run.key, "q") == record
        await flow.durable()
        assert store._unsaved_requests == {}
        assert store.request(flow.run.key, "q") == record
        assert store.request(flow.run.key, "other") is None


async def test_a_full_disk_stops_the_store_and_the_file_stays_good(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    store = open_test_store(tmp_path, failures)
    flow = StoredFlow(store, start_with(flow_id="flow"))
    flow.publish("c", b"before")
    await flow.durable()
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFailedError, match="full"):
        await _publish_much(flow)
    assert len(failures) == 1
    await store.close()
    async with opened(tmp_path) as again:
        summary = again.summary("flow")
        assert summary is not None
        assert again.load(summary.key).channels["c"][0].value == b"before"


async def _publish_much(flow: StoredFlow) -> None:
    for _ in range(100):
        flow.publish("c", b"x" * 10_000)
        await flow.durable()


@pytest.mark.parametrize("limit", [0, 1_000_000])
async def test_the_log_starts_over_while_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """With a limit of 0 commits wait for a checkpoint; with a high one it runs beside them."""
    monkeypatch.setattr("dex_embedded._store.sqlite.CHECKPOINT_STATEMENTS", 20)
    monkeypatch.setattr("dex_embedded._store.sqlite.LOG_LIMIT_PAGES", limit)
    async with opened(tmp_path) as store:
        flow = StoredFlow(store)
        await flow.durable()
        first = _log_generation(tmp_path)
        async with asyncio.timeout(60):
            while _log_generation(tmp_path) == first:
                flow.publish("c", b"x" * 2_000)
                await flow.durable()


def _log_generation(folder: Path) -> bytes:
    """Two numbers in the header of the log that change each time it starts over."""
    return (folder / "dex.sqlite3-wal").read_bytes()[16:24]
