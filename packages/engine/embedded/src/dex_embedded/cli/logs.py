"""What `dex-embedded dev` logs: one line a record on stderr, as text or as JSON.

Both forms leave out what an exception says and the source around it, because they may hold a user's
value; its type and place stay. This also covers records of libraries.
"""

from __future__ import annotations

import enum
import json
import logging
import sys
from datetime import UTC, datetime

from dex_embedded._runtime.failure_text import place_of
from dex_embedded._runtime.log_fields import KEY


class LogFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def set_up_logging(form: LogFormat, level: LogLevel) -> None:
    """Sends all log records of the process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if form is LogFormat.TEXT else JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


class TextFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE`, always one line."""

    def format(self, record: logging.LogRecord) -> str:
        failure = _failure(record)
        message = record.getMessage() + (f": {failure}" if failure else "")
        # A name with a line break in it must not pass for a record of its own.
        line = (
            message.encode("unicode_escape").decode("ascii")
            if not message.isprintable()
            else (message)
        )
        return f"{_time(record)} {record.levelname} {record.name}: {line}"


class JsonFormatter(logging.Formatter):
    """One JSON object: `time`, `level`, `logger`, `message`, what it is about (`flow_id`,
    `flow_type`, `step`, `worker`, `stream`, `call`), and `failure` if there was one."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, KEY, {}),
        }
        failure = _failure(record)
        if failure:
            document["failure"] = failure
        return json.dumps(document)


def _failure(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return "" if error is None else place_of(error)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
