"""The connection that reads, behind one door that knows what a failure means."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

Row = tuple[Any, ...]
"""One row of a query; its shape is known to whoever wrote the query."""


class Reader:
    """Reads committed rows.

    Args:
        connection: Used by nobody else.
        failed: Turns an error of the database into the one to raise; may be set anew.
    """

    def __init__(
        self, connection: sqlite3.Connection, failed: Callable[[sqlite3.Error], Exception]
    ) -> None:
        self._connection = connection
        self.failed = failed

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """All rows of a query. None stays open: a read that lasts would keep the log from
        starting over."""
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise self.failed(error) from error

    def row(self, sql: str, parameters: Sequence[object] = ()) -> Row | None:
        """The first row of a query that has at most one."""
        rows = self.rows(sql, parameters)
        return rows[0] if rows else None

    def close(self) -> None:
        self._connection.close()
