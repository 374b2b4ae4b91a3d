from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from store_testing import FILE_NAME, StoredFlow, open_test_store, opened

from dex_embedded._store.errors import (
    StoreDamagedError,
    StoreError,
    StoreFailedError,
    StoreForeignError,
    StoreInUseError,
    StoreUnusableError,
    StoreVersionError,
)
from dex_embedded._store.schema import APPLICATION_ID, FORMAT_VERSION


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


async def make_file(folder: Path, flows: int = 3) -> Path:
    """A closed data file with a few flows."""
    async with opened(folder) as store:
        for _ in range(flows):
            StoredFlow(store)
    return folder / FILE_NAME


def refused(folder: Path) -> StoreError:
    """The error of opening; the data file must be byte for byte what it was, with no companions."""
    path = folder / FILE_NAME
    before = path.read_bytes() if path.is_file() else None
    names = names_in(folder)
    with pytest.raises(StoreUnusableError) as caught:
        open_test_store(folder)
    assert caught.value.path == path
    assert (path.read_bytes() if path.is_file() else None) == before
    assert set(names_in(folder)) - {f"{FILE_NAME}.lock"} == set(names) - {f"{FILE_NAME}.lock"}
    return caught.value


async def test_a_new_file_is_made_with_its_format_version_and_reopens(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        flow = StoredFlow(store)
        await flow.durable()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        assert connection.execute("PRAGMA user_version").fetchone()[0] == FORMAT_VERSION
    async with opened(tmp_path) as store:
        summary = store.summary(flow.run.flow_id)
        assert summary is not None
        assert summary.run_id == flow.run.run_id


async def test_closing_twice_is_harmless_and_leaves_one_data_file(tmp_path: Path) -> None:
    store = open_test_store(tmp_path)
    await store.close()
    await store.close()
    assert names_in(tmp_path) == [FILE_NAME, f"{FILE_NAME}.lock"]


async def test_a_second_engine_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(StoreInUseError, match=f"process {os.getpid()}"):
            open_test_store(tmp_path)
        await StoredFlow(store).durable()
    async with opened(tmp_path):
        pass


async def test_a_newer_file_is_refused_naming_both_versions(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 7}")
    _settle_log(path)
    error = refused(tmp_path)
    assert isinstance(error, StoreVersionError)
    assert (error.found, error.supported) == (FORMAT_VERSION + 7, FORMAT_VERSION)
    assert str(FORMAT_VERSION + 7) in str(error)
    assert str(FORMAT_VERSION) in str(error)


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("CREATE TABLE run (key INTEGER)")
    assert isinstance(refused(tmp_path), StoreForeignError)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"SQLite format 3\x00", os.urandom(8192)])
async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert isinstance(refused(tmp_path), StoreForeignError)


async def test_a_truncated_file_is_refused_as_damaged(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-4096])
    assert isinstance(refused(tmp_path), StoreDamagedError)


async def test_a_log_without_its_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}-wal").write_bytes(b"committed rows")
    assert isinstance(refused(tmp_path), StoreDamagedError)


async def test_an_overwritten_page_is_refused_as_damaged(tmp_path: Path) -> None:
    path = await make_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[4096 : 4096 * 3] = os.urandom(8192)
    path.write_bytes(content)
    assert isinstance(refused(tmp_path), StoreDamagedError)


async def test_damage_that_shows_later_stops_the_store(tmp_path: Path) -> None:
    path = await make_file(tmp_path, flows=1)
    failures: list[BaseException] = []
    store = open_test_store(tmp_path, failures)
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(StoreFailedError, match="could not be read"):
        store.summary("some flow")
    assert len(failures) == 1
    with pytest.raises(StoreFailedError):
        StoredFlow(store)
    await store.close()


async def test_a_missing_folder_and_a_folder_in_place_of_the_file_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(StoreUnusableError, match="no folder"):
        open_test_store(tmp_path / "missing")
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(StoreUnusableError, match="not a regular file"):
        open_test_store(tmp_path)


_OPEN_IN_CHILD = """
import asyncio, sys
from pathlib import Path
from dex_embedded._store.errors import StoreUnusableError
from dex_embedded._store.sqlite import open_store

async def main():
    try:
        store = open_store(Path(sys.argv[1]), encode_event=repr, on_failure=print)
    except StoreUnusableError as error:
        print(type(error).__name__, error)
    else:
        await store.close()
        print("opened")

asyncio.run(main())
"""


def open_without_privileges(path: Path) -> str:
    """What opening says in a process that file permissions bind (root passes them by)."""
    user = 65534 if os.geteuid() == 0 else None
    # Imported here already, so that the child needs no right to read our folders.
    script = "import sys; sys.path[:] = sys.argv[2].split(':')\n" + _OPEN_IN_CHILD
    if user is not None:
        script = (
            "import os, sys; sys.path[:] = sys.argv[2].split(':')\n"
            "import dex_embedded._store.sqlite, encodings.idna, concurrent.futures.thread\n"
            f"os.setgroups([]); os.setgid({user}); os.setuid({user})\n" + _OPEN_IN_CHILD
        )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), ":".join(sys.path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.fixture
def open_folder() -> Generator[Path]:
    """A folder every user can reach. Not below pytest's own, which other sessions close again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


async def test_a_read_only_folder_is_refused_with_the_reason(open_folder: Path) -> None:
    folder = open_folder / "data"
    folder.mkdir()
    folder.chmod(0o555)
    said = open_without_privileges(folder / FILE_NAME)
    assert said.startswith("StoreUnusableError")
    assert "Permission denied" in said
    assert names_in(folder) == []


async def test_a_read_only_file_is_refused_and_left_alone(open_folder: Path) -> None:
    folder = open_folder / "data"
    folder.mkdir()
    path = await make_file(folder)
    before = path.read_bytes()
    path.chmod(0o444)
    (folder / f"{FILE_NAME}.lock").chmod(0o666)
    folder.chmod(0o777)
    said = open_without_privileges(path)
    # The owner of a file that is not root cannot write it either way.
    assert said.startswith("StoreUnusableError")
    assert path.read_bytes() == before


async def test_an_unfinished_new_file_of_a_crash_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}.new").write_bytes(b"half a schema")
    async with opened(tmp_path):
        pass
    assert not (tmp_path / f"{FILE_NAME}.new").exists()


_KILLED_IN_THE_MIDDLE = """
import asyncio, itertools, os, signal, sys
from pathlib import Path
from store_testing import StoredFlow, open_test_store
from kernel_testing import start_with

async def main():
    store = open_test_store(Path(sys.argv[1]), synchronous="FULL")
    flow = StoredFlow(store, start_with(flow_id="flow"))
    for number in itertools.count(1):
        flow.publish("c", b"%d" % number)
        await flow.durable()
        print(number, flush=True)
        if number == 50:
            for late in range(20):
                flow.publish("c", b"late")
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def run_until_killed(folder: Path) -> list[bytes]:
    """What a child that kills itself in the middle of its work had been told is durable."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_IN_THE_MIDDLE, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return [line.encode() for line in done.stdout.split()]


async def test_what_was_reported_durable_is_there_after_a_kill(tmp_path: Path) -> None:
    acknowledged = run_until_killed(tmp_path)
    assert len(acknowledged) == 50
    async with opened(tmp_path) as store:
        summary = store.summary("flow")
        assert summary is not None
        values = [message.value for message in store.load(summary.key).channels["c"]]
        assert values[:50] == acknowledged
        assert set(values[50:]) <= {b"late"}


def _settle_log(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
