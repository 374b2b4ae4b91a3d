"""Group commit: everything that waits goes into one COMMIT, and no caller waits for a clock.

The loop's thread owns the write connection and runs the statements; COMMIT alone runs in a thread,
since it is what waits for the disk. While it runs the connection is left alone: rows wait in memory
and become the next transaction. No task is started: completions come as loop callbacks.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Final

from dex_embedded._store.errors import StoreFailedError
from dex_embedded._store.opening import restart_log

UNHURRIED_SECONDS = 0.005
"""How long work that nobody waits for may wait for other work to be committed with."""

DISK_BEFORE: Final = "disk.before"
DISK_AFTER: Final = "disk.after"
"""The two moments around each COMMIT that `reach` is told of, in the commit thread."""

Statement = tuple[str, Sequence[object]]
"""SQL text and its parameters."""


class Batch:
    """Work that becomes durable together; the ticket of each piece of it."""

    def __init__(self) -> None:
        self.is_durable = False
        self._failure: StoreFailedError | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._waiters: list[asyncio.Future[None]] = []

    def add_callback(self, callback: Callable[[], None]) -> None:
        if self.is_durable:
            callback()
        else:
            self._callbacks.append(callback)

    async def wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self.is_durable:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def succeed(self) -> None:
        """Tell everybody, in the order they came. One broken callback stops no other."""
        self.is_durable = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "error in a callback of a durable transition", "exception": error}
                )

    def fail(self, failure: StoreFailedError) -> None:
        self._failure = failure
        self._callbacks.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(failure)


class GroupCommit:
    """Feeds one write connection.

    Args:
        connection: In autocommit mode, not bound to a thread; used by nobody else.
        executor: Runs the COMMITs.
        on_failure: Called once, on the loop, with the first error of a statement or COMMIT.
        after_commit: Called on the loop after each COMMIT with its number of statements.
        reach: Called in the executor right before and after each COMMIT with the moment's name.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        executor: Executor,
        on_failure: Callable[[BaseException], None],
        after_commit: Callable[[int], None] = lambda _: None,
        reach: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._after_commit = after_commit
        self._reach = reach
        self._failure: StoreFailedError | None = None
        self._open: Batch | None = None
        self._open_statements = 0
        self._open_is_hurried = False
        self._unhurried: asyncio.TimerHandle | None = None
        self._committing: Batch | None = None
        self._next: Batch | None = None
        self._next_statements: list[Statement] = []
        self._next_is_hurried = False
        self._checkpoint_wanted = False
        self.commits = 0

    def stage(self, statements: Sequence[Statement], *, hurried: bool = True) -> Batch:
        """Take statements as one piece of work.

        Work that is not hurried goes with the next COMMIT that somebody waits for, or with one of
        its own a moment later.

        Without statements the piece is durable as soon as everything staged before it is.

        Raises:
            StoreFailedError: The store has failed, now or before.
        """
        if self._failure is not None:
            raise self._failure
        if not statements:
            return self._newest()
        if self._committing is not None:
            if self._next is None:
                self._next = Batch()
            self._next_statements.extend(statements)
            self._next_is_hurried |= hurried
            return self._next
        batch = self._ensure_open(hurried)
        self._execute(statements)
        if self._failure is not None:
            raise self._failure
        return batch

    def checkpoint_after_next_commit(self) -> None:
        """Let the next COMMIT be followed by a checkpoint that starts the log over."""
        self._checkpoint_wanted = True

    def _newest(self) -> Batch:
        newest = self._next or self._open or self._committing
        if newest is None:
            newest = Batch()
            newest.is_durable = True
        return newest

    def _ensure_open(self, hurried: bool) -> Batch:
        if self._open is None:
            self._open = Batch()
            self._open_statements = 0
            self._schedule_commit(hurried)
        elif hurried and not self._open_is_hurried:
            self._schedule_commit(hurried)
        return self._open

    def _schedule_commit(self, hurried: bool) -> None:
        self._open_is_hurried = hurried
        if hurried:
            # The rest of this turn of the loop joins the batch.
            self._loop.call_soon(self._begin_commit)
        else:
            self._unhurried = self._loop.call_later(UNHURRIED_SECONDS, self._begin_commit)

    def _execute(self, statements: Sequence[Statement]) -> None:
        connection = self._connection
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements:
                connection.execute(sql, parameters)
        except sqlite3.Error as error:
            self.fail(error)
        else:
            self._open_statements += len(statements)

    def _begin_commit(self) -> None:
        if self._failure is not None or self._open is None or self._committing is not None:
            return
        if self._unhurried is not None:
            # Left running, it would cut the wait of a later batch short.
            self._unhurried.cancel()
            self._unhurried = None
        self._committing, self._open = self._open, None
        future = self._executor.submit(self._commit, self._checkpoint_wanted)
        self._checkpoint_wanted = False
        future.add_done_callback(self._hand_to_loop)

    def _commit(self, then_checkpoint: bool) -> None:
        """Runs in the executor."""
        self._reach(DISK_BEFORE)
        self._connection.execute("COMMIT")
        self._reach(DISK_AFTER)
        if then_checkpoint:
            restart_log(self._connection)

    def _hand_to_loop(self, future: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._end_commit, future.exception())

    def _end_commit(self, error: BaseException | None) -> None:
        batch, self._committing = self._committing, None
        if batch is None:
            return
        if error is not None:
            batch.fail(self.fail(error))
            return
        self.commits += 1
        statements = self._open_statements
        if self._next is not None:
            # First, so that what the callbacks below stage comes after what waited.
            self._open, self._next = self._next, None
            waiting, self._next_statements = self._next_statements, []
            self._open_statements = 0
            self._execute(waiting)
            self._schedule_commit(self._next_is_hurried)
            self._next_is_hurried = False
        batch.succeed()
        self._after_commit(statements)

    def fail(self, error: BaseException, what: str = "written") -> StoreFailedError:
        """Give everything up: memory is ahead of the disk from here on, or the disk is broken."""
        if self._failure is None:
            self._failure = StoreFailedError(f"the data file could not be {what}: {error}")
            self._failure.__cause__ = error
            for batch in (self._open, self._next):
                if batch is not None:
                    batch.fail(self._failure)
            self._open = self._next = None
            self._next_statements.clear()
            if self._committing is None and self._connection.in_transaction:
                # Closing the connection, which comes next, rolls back as well.
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
            self._on_failure(self._failure)
        return self._failure

    async def drain(self) -> None:
        """Return when nothing waits and no COMMIT runs, in whatever way that came about."""
        while True:
            newest = self._next or self._open or self._committing
            if newest is None:
                return
            try:
                await newest.wait()
            except StoreFailedError:
                return
