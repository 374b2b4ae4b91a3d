"""Reads the log of places as it grows, each line once."""

from __future__ import annotations

import json
from pathlib import Path

from dex_agents.testing import Invocation


class PlaceLog:
    """The arrivals at places of the workers, by session.

    Args:
        path: The log that `PlaceRecorder` writes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._all: list[Invocation] = []
        self._by_flow: dict[str, list[Invocation]] = {}

    def all(self) -> list[Invocation]:
        """Return every arrival so far, in order."""
        self._read_on()
        return self._all

    def of(self, flow_id: str) -> list[Invocation]:
        """Return the arrivals on behalf of one session, in order."""
        self._read_on()
        return self._by_flow.get(flow_id, [])

    def _read_on(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        # A line that is just being written is read next time.
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for text in whole.splitlines():
            line = json.loads(text)
            found = Invocation(line["name"], line["details"], line["process_id"], line["at"])
            self._all.append(found)
            self._by_flow.setdefault(found.details.get("flow_id", ""), []).append(found)
