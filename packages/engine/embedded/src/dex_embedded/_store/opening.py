"""Finding out whether a data file can be used, and opening it.

Nothing is written before everything that can be wrong has been looked at: a file that is foreign,
damaged or newer is left byte for byte as it was. A new file is made complete under another name
and then moved into place, so a crash never leaves half a schema.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from dex_embedded._store.errors import (
    StoreDamagedError,
    StoreForeignError,
    StoreInUseError,
    StoreUnusableError,
    StoreVersionError,
)
from dex_embedded._store.schema import APPLICATION_ID, FORMAT_VERSION, MIGRATIONS

_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_LENGTH: Final = 100
_THOROUGH_CHECK_LIMIT: Final = 32 * 1024 * 1024
"""Files up to this size get SQLite's own consistency check at every start; it reads them whole."""

_CACHE_KIB: Final = 8_000

LOG_LIMIT_PAGES: Final = 16_384
"""When the log has grown past this many pages (64 MiB) commits wait for one full checkpoint, and
when it starts over its file is cut to this size."""

CHECKPOINT_WAITS_MS: Final = 200
"""How long commits are kept waiting for readers who are in the way of that."""

_BUSY_MS: Final = 5_000
_PAGE_BYTES: Final = 4_096


class FileLock:
    """Keeps a second engine off the data file: an advisory lock on a file beside it.

    It is not the data file itself that is locked, since SQLite has its own locks there.
    """

    def __init__(self, data_file: Path, *, shared: bool = False) -> None:
        """Take the lock.

        Args:
            data_file: What to keep others off.
            shared: Only looks at the file. Makes nothing: without a lock file no engine has ever
                had the data file at this place.

        Raises:
            StoreInUseError: Somebody has it.
            StoreUnusableError: The lock file cannot be made.
        """
        self.path = data_file.with_name(data_file.name + ".lock")
        self._fd = -1
        try:
            flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
            self._fd = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if shared and isinstance(error, FileNotFoundError):
                return
            raise StoreUnusableError(data_file, _reason(error)) from error
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StoreInUseError(data_file, f"{who} is using it") from error
        if shared:
            return
        with suppress(OSError):  # the number only serves the message above
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others in. Twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def check_header(path: Path) -> bool:
    """Look at the beginning of the data file without opening it as a database.

    Returns:
        False when there is no file yet.

    Raises:
        StoreUnusableError: It cannot be used; the subclass says why.
    """
    try:
        facts = path.stat()
    except FileNotFoundError:
        if _has_log(path):
            # SQLite would replay it into a new file.
            raise StoreDamagedError(path, "its log is there, but the file itself is gone") from None
        return False
    except OSError as error:
        raise StoreUnusableError(path, _reason(error)) from error
    if not stat.S_ISREG(facts.st_mode):
        raise StoreUnusableError(path, "it is not a regular file")
    if facts.st_size == 0:
        raise StoreForeignError(path, "the file is empty, so it is no database of this engine")
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_LENGTH)
    except OSError as error:
        raise StoreUnusableError(path, _reason(error)) from error
    if not header.startswith(_MAGIC) or len(header) < _HEADER_LENGTH:
        raise StoreForeignError(path, "the file is not a database")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StoreForeignError(path, "the file is a database of another program")
    _check_version(path, int.from_bytes(header[60:64], "big"))
    _check_length(path, header, facts.st_size)
    return True


def _check_version(path: Path, version: int) -> None:
    if version > FORMAT_VERSION:
        raise StoreVersionError(path, version, FORMAT_VERSION)
    if version < 1:
        raise StoreDamagedError(path, "it has no format version")


def _check_length(path: Path, header: bytes, size: int) -> None:
    """A file that is shorter than it says has lost its end; with a log beside it, SQLite has the
    rest there."""
    if _has_log(path):
        return
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(header[28:32], "big")
    if size < pages * page_size:
        raise StoreDamagedError(path, f"it should have {pages * page_size} bytes and has {size}")


def check_content(path: Path) -> None:
    """Look into a data file whose header is right, without writing.

    Raises:
        StoreUnusableError: It cannot be used; the subclass says why.
    """
    try:
        with closing(connect_observer(path)) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            _check_version(path, version)
            connection.execute("SELECT key FROM run LIMIT 1").fetchone()
            if path.stat().st_size <= _THOROUGH_CHECK_LIMIT:
                verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise StoreDamagedError(path, verdict)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error) or "malformed" in str(error):
            raise StoreDamagedError(path, str(error)) from error
        raise StoreUnusableError(path, str(error)) from error
    except sqlite3.DatabaseError as error:
        raise StoreDamagedError(path, str(error)) from error


def connect_observer(path: Path) -> sqlite3.Connection:
    """A connection for a file nobody writes to, that changes nothing. Raises `sqlite3.Error`."""
    # Read only: closing a writing connection would move the log into the file. Without a log the
    # file is all there is, and "immutable" leaves no companions behind.
    mode = "mode=ro" if _has_log(path) else "mode=ro&immutable=1"
    return _connect(f"{path.absolute().as_uri()}?{mode}")


def _has_log(path: Path) -> bool:
    """Whether committed rows wait beside the data file."""
    with suppress(OSError):
        return path.with_name(path.name + "-wal").stat().st_size > 0
    return False


def create_file(path: Path) -> None:
    """Make a new, empty data file.

    Raises:
        StoreUnusableError: The folder does not allow it.
    """
    unfinished = path.with_name(path.name + ".new")
    try:
        _remove_with_companions(unfinished)
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            _migrate(connection, 0)
            connection.execute("PRAGMA journal_mode = WAL")
        unfinished.chmod(0o600)
        unfinished.replace(path)
        flush_folder(path.parent)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            _remove_with_companions(unfinished)
        raise StoreUnusableError(path, _reason(error)) from error


def connect_writer(path: Path, synchronous: str) -> sqlite3.Connection:
    """The connection that writes, with the newest schema.

    Raises:
        StoreUnusableError: The file cannot be written.
    """
    try:
        connection = _connect(f"{path.absolute().as_uri()}?mode=rw")
        with _closed_on_error(connection):
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            # Without it macOS leaves flushed data in the drive's cache; no effect elsewhere.
            connection.execute(f"PRAGMA fullfsync = {'ON' if synchronous == 'FULL' else 'OFF'}")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_PAGES * _PAGE_BYTES}")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            # A write, taken back: says at once whether the file can be written at all.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA user_version = {version}")
            connection.execute("ROLLBACK")
            if version < FORMAT_VERSION:
                _migrate(connection, version)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StoreUnusableError(path, _reason(error)) from error
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write.

    Raises:
        StoreUnusableError: The file cannot be opened.
    """
    try:
        return _connect(f"{path.absolute().as_uri()}?mode=ro")
    except sqlite3.Error as error:
        raise StoreUnusableError(path, _reason(error)) from error


def connect_checkpointer(path: Path) -> sqlite3.Connection:
    """A connection that moves the log into the file. Raises `sqlite3.Error`."""
    return _connect(f"{path.absolute().as_uri()}?mode=rw")


def _connect(uri: str) -> sqlite3.Connection:
    # Used by the loop's thread and, for COMMIT and close alone, by the store's own thread.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    with _closed_on_error(connection):
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    return connection


def restart_log(connection: sqlite3.Connection) -> None:
    """Let the log start over, or leave it when a reader stays in the way. Between transactions."""
    connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAITS_MS}")
    try:
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """Apply the missing migrations, each as one transaction with its record."""
    for number in range(version, FORMAT_VERSION):
        connection.execute("BEGIN IMMEDIATE")
        for statement in MIGRATIONS[number]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Generator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _remove_with_companions(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    if "readonly" in text or "unable to open" in text:
        return f"{text} (check that the folder and the file can be written)"
    return text
