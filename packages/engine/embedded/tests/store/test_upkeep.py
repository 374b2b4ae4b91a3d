"""Checking, copying and pruning data files."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from kernel_testing import start_with
from store_testing import FILE_NAME, StoredFlow, comparable, opened

from dex_embedded._kernel.inputs import StopFlow
from dex_embedded._kernel.state import FlowRun
from dex_embedded._kernel.values import StopType
from dex_embedded._store.backup import BackupTargetError, backup_file
from dex_embedded._store.check import check_file
from dex_embedded._store.errors import StoreForeignError, StoreInUseError, StoreUnusableError
from dex_embedded._store.protocol import StreamScope
from dex_embedded._store.prune import prune_file
from dex_embedded._store.sqlite import SqliteStore

SCOPE = StreamScope(flow_type="Order", stream_name="Events")
EVER = time.time() + 10**9


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def stop(flow: StoredFlow) -> None:
    flow.feed(StopFlow(type=StopType.CANCEL))


async def make_file(folder: Path) -> Path:
    """One active and one closed flow, both with a stream message, in a closed file."""
    async with opened(folder) as store:
        for name, closes in (("active", False), ("closed", True)):
            flow = StoredFlow(store, start_with(flow_id=name))
            if closes:
                stop(flow)
            store.append_stream_message(
                SCOPE, name, value=b"{}", source="", created_at=1.0, capacity=10_000
            )
    return folder / FILE_NAME


def whole(store: SqliteStore, key: int) -> FlowRun:
    """The run with all its attributes read, so that it can be compared without the store."""
    run = comparable(store.load(key))
    assert run == comparable(store.load(key))
    return run


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(sql)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


# --- check -----------------------------------------------------------------------------------


async def test_a_sound_file_has_no_problems_and_is_left_as_it_was(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    before, names = path.read_bytes(), names_in(tmp_path)
    report = check_file(path)
    assert report.problems == ()
    assert (report.active_runs, report.closed_runs) == (1, 1)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == names


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("UPDATE run SET busy = 1 - busy WHERE flow_id = 'active'", "work in progress"),
        ("UPDATE run SET wake_at = 12.5 WHERE flow_id = 'active'", "next due"),
        ("UPDATE run SET closed_at = NULL WHERE flow_id = 'closed'", "closing time"),
        ("UPDATE run SET header = '{' WHERE flow_id = 'active'", "cannot be read"),
        ("DELETE FROM run WHERE flow_id = 'closed'", "rows of runs that do not exist"),
        ("DELETE FROM stream_scope", "streams that do not exist"),
        ("DELETE FROM event WHERE id = (SELECT max(id) FROM event)", "history ends with"),
        ('UPDATE step SET state = \'{"method": "secret"}\'', "cannot be read"),
    ],
)
async def test_what_cannot_be_right_is_found(tmp_path: Path, sql: str, said: str) -> None:
    path = await make_file(tmp_path)
    change(path, sql)
    problems = check_file(path).problems
    assert any(said in problem for problem in problems), problems
    assert not any("secret" in problem for problem in problems)


async def test_overwritten_pages_are_found(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 4] = b"\xa5" * 4096
    path.write_bytes(content)
    assert "damaged" in check_file(path).problems[0]


async def test_a_file_in_use_or_missing_or_foreign_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusableError, match="no such file"):
        check_file(tmp_path / FILE_NAME)
    async with opened(tmp_path):
        with pytest.raises(StoreInUseError):
            check_file(tmp_path / FILE_NAME)
    (tmp_path / "notes").write_text("not a database")
    with pytest.raises(StoreForeignError):
        check_file(tmp_path / "notes")


async def test_a_file_of_an_older_format_is_not_checked_with_the_rules_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await make_file(tmp_path)
    monkeypatch.setattr("dex_embedded._store.check.FORMAT_VERSION", 2)
    with pytest.raises(StoreUnusableError, match="start the engine once"):
        check_file(path)


# --- backup ----------------------------------------------------------------------------------


async def test_a_copy_taken_while_an_engine_writes_is_whole_and_can_be_gone_on_with(
    tmp_path: Path,
) -> None:
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / FILE_NAME
    async with opened(tmp_path) as store:
        flow = StoredFlow(store, start_with(flow_id="kept"))
        await flow.durable()
        then = whole(store, flow.run.key)
        size = backup_file(tmp_path / FILE_NAME, copy)
        assert size == copy.stat().st_size
        later = StoredFlow(store)
        await later.durable()
    assert names_in(tmp_path / "copy") == [FILE_NAME]
    assert copy.stat().st_mode & 0o077 == 0
    assert check_file(copy).problems == ()
    async with opened(tmp_path / "copy") as restored:
        assert whole(restored, flow.run.key) == then
        assert restored.summary(later.run.flow_id) is None


async def test_a_copy_never_replaces_anything(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    for name in ("copy", "other-wal", "third.new"):
        (tmp_path / name).write_text("something else")
    names = names_in(tmp_path)
    for target in ("copy", "other", "third"):
        with pytest.raises(BackupTargetError, match=target) as refused:
            backup_file(path, tmp_path / target)
        assert refused.value.target == tmp_path / target
    with pytest.raises(BackupTargetError, match="No such file"):
        backup_file(path, tmp_path / "missing" / "copy")
    assert names_in(tmp_path) == names
    assert (tmp_path / "copy").read_text() == "something else"


async def test_a_file_that_cannot_be_copied_leaves_nothing_behind(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 4] = b"\xa5" * 4096
    path.write_bytes(content)
    names = names_in(tmp_path)
    with pytest.raises(StoreUnusableError):
        backup_file(path, tmp_path / "copy")
    assert set(names_in(tmp_path)) - {f"{FILE_NAME}-shm", f"{FILE_NAME}-wal"} == set(names)


# --- prune -----------------------------------------------------------------------------------


async def test_pruning_removes_all_of_a_closed_run_and_nothing_of_others(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    async with opened(tmp_path) as store:
        summary = store.summary("active")
        assert summary is not None
        before = whole(store, summary.key)
        history = store.history(summary.key, 1, 100)
    planned = prune_file(path, closed_before=EVER, dry_run=True)
    assert count(path, "run") == 2
    done = prune_file(path, closed_before=EVER)
    assert (done.runs, done.stream_messages) == (1, 1)
    assert done.events > 0
    assert (planned.runs, planned.events, planned.stream_messages) == (
        done.runs,
        done.events,
        done.stream_messages,
    )
    assert check_file(path).problems == ()
    assert count(path, "run") == 1
    assert count(path, "stream_message") == 1
    async with opened(tmp_path) as store:
        assert store.summary("closed") is None
        assert whole(store, summary.key) == before
        assert store.history(summary.key, 1, 100) == history
        assert store.new_run_key() == 3, "a key is never given twice"


async def test_runs_that_closed_later_stay(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    assert prune_file(path, closed_before=0.0).runs == 0
    assert count(path, "run") == 2


async def test_a_flow_that_was_started_again_loses_its_old_run_and_keeps_its_streams(
    tmp_path: Path,
) -> None:
    path = await make_file(tmp_path)
    async with opened(tmp_path) as store:
        again = StoredFlow(store, start_with(flow_id="closed"))
        await again.durable()
    done = prune_file(path, closed_before=EVER)
    assert (done.runs, done.stream_messages) == (1, 0)
    async with opened(tmp_path) as store:
        summary = store.summary("closed")
        assert summary is not None
        assert summary.run_id == again.run.run_id


async def test_the_latest_run_of_a_flow_never_goes_before_an_older_one(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    async with opened(tmp_path) as store:
        again = StoredFlow(store, start_with(flow_id="closed"))
        stop(again)
    change(path, f"UPDATE run SET closed_at = 5 WHERE key = {again.run.key}")
    assert prune_file(path, closed_before=10).runs == 0


async def test_compacting_gives_the_space_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for _ in range(300):
            stop(StoredFlow(store))
    path = tmp_path / FILE_NAME
    done = prune_file(path, closed_before=EVER, compact=True)
    assert done.runs == 300
    assert done.size_after < done.size_before * 0.7
    assert names_in(tmp_path) == [FILE_NAME, f"{FILE_NAME}.lock"]
    assert check_file(path).problems == ()


async def test_a_file_in_use_is_not_pruned_and_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path):
        for dry_run in (False, True):
            with pytest.raises(StoreInUseError):
                prune_file(tmp_path / FILE_NAME, closed_before=EVER, dry_run=dry_run)
    path = await make_file(tmp_path)
    before, names = path.read_bytes(), names_in(tmp_path)
    prune_file(path, closed_before=EVER, dry_run=True)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == names
