"""A consistent copy of a data file, also while an engine writes to it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from dex_embedded._store.errors import StoreDamagedError, StoreUnusableError
from dex_embedded._store.opening import check_header, connect_reader, flush_folder


class BackupTargetError(ValueError):
    """The copy cannot be written where it was asked for. Nothing was changed there.

    Attributes:
        target: Where the copy was to go.
    """

    def __init__(self, target: Path, problem: str) -> None:
        super().__init__(f"cannot write backup {target}: {problem}")
        self.target = target


def backup_file(path: Path, target: Path) -> int:
    """Copy what is committed at this moment, and check the copy.

    The copy is one read of the database, so it is a state the engine really was in. Writers go on
    meanwhile; the log beside the data file only starts over once the copy is done.

    Returns:
        The bytes of the copy.

    Raises:
        BackupTargetError: There is something at `target` already, or it cannot be written.
        StoreUnusableError: The data file cannot be read; the subclass says why.
    """
    if not check_header(path):
        raise StoreUnusableError(path, "there is no such file")
    unfinished = target.with_name(target.name + ".new")
    with ExitStack() as undo:
        for companion in ("-wal", "-journal"):
            # SQLite would replay it into the copy.
            if target.with_name(target.name + companion).exists():
                raise BackupTargetError(target, f"{target.name}{companion} is in the way")
        # Taken before the work, so that two backups cannot both think the place is free.
        _reserve(target, target)
        undo.callback(target.unlink, missing_ok=True)
        _reserve(unfinished, target)
        undo.callback(unfinished.unlink, missing_ok=True)
        source = undo.enter_context(closing(connect_reader(path)))
        try:
            _copy(source, unfinished, path)
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            size = unfinished.stat().st_size
            unfinished.replace(target)
            undo.pop_all()
            source.close()
            flush_folder(target.parent)
        except OSError as error:
            raise BackupTargetError(target, error.strerror or str(error)) from error
    return size


def _reserve(file: Path, target: Path) -> None:
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise BackupTargetError(target, f"{file.name} exists, and is not overwritten") from None
    except OSError as error:
        raise BackupTargetError(target, error.strerror or str(error)) from None


def _copy(source: sqlite3.Connection, unfinished: Path, path: Path) -> None:
    with closing(sqlite3.connect(unfinished, isolation_level=None)) as copy:
        try:
            # In one step: in several, every commit in between would make it start over.
            source.backup(copy, pages=-1)
        except sqlite3.Error as error:
            raise StoreUnusableError(path, str(error)) from error
        # Ends the copy's own log, which must not stay beside it.
        copy.execute("PRAGMA journal_mode = DELETE")
        verdict = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise StoreDamagedError(path, f"its copy is damaged: {verdict}")
    for companion in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            unfinished.with_name(unfinished.name + companion).unlink()
