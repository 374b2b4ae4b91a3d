"""The record of requests: one JSON line each, written before the request is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dex_agents_testkit.model_server.conversation import (
    Conversation,
    read_chat_request,
    read_responses_request,
)

RESPONSES_PATH = "/v1/responses"
CHAT_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request as it arrived. Headers are left out: they carry the API key.

    `answer` is `reply`, `fault: ...`, `mismatch: ...` or `refused: ...`; `rule` names the script's
    rule, and `try_number` counts from 1 how often this very conversation has been asked.
    """

    sequence: int
    received_at: float
    path: str
    rule: str | None
    try_number: int
    answer: str
    body: Mapping[str, Any]

    @property
    def conversation(self) -> Conversation:
        """The request in the form that rules look at."""
        read = read_chat_request if self.path == CHAT_PATH else read_responses_request
        return read(self.body)


class RequestLog:
    """Keeps recorded requests in memory and, with a path, appends each to a file."""

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._requests: list[RecordedRequest] = []
        self._count = 0
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self._count = len(read_recorded_requests(self._path))

    @property
    def requests(self) -> tuple[RecordedRequest, ...]:
        """What this server has received, oldest first."""
        return tuple(self._requests)

    def next_sequence(self) -> int:
        """Return the next number; numbers go on where an existing file ends."""
        self._count += 1
        return self._count

    def add(self, request: RecordedRequest) -> None:
        self._requests.append(request)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(request)) + "\n")


def read_recorded_requests(path: str | Path) -> list[RecordedRequest]:
    """Read a requests log; a file that does not exist yet holds no requests."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [RecordedRequest(**json.loads(line)) for line in lines if line.strip()]
