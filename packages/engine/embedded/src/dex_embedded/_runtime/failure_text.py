"""Saying what went wrong inside the engine without repeating anybody's data.

The text of an unforeseen exception may quote what it choked on, and that may be a user's value. So
a log line has its type and the places it came through instead.
"""

from __future__ import annotations

import traceback
from pathlib import PurePath
from typing import Final

from dex_embedded._store.errors import StoreError

_FRAMES: Final = 6


def describe_failure(error: BaseException) -> str:
    """One line about an error, safe to log and to show.

    The store's own errors are told in full: their texts are written by the engine and by SQLite,
    which name files, tables and columns.
    """
    if isinstance(error, StoreError):
        return str(error)
    return place_of(error)


def place_of(error: BaseException) -> str:
    """The type of an error, those behind it, and where it was raised, innermost first."""
    names = [_name(error)]
    behind = error.__cause__
    while behind is not None and len(names) < _FRAMES:
        names.append(_name(behind))
        behind = behind.__cause__
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = [
        f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)
    ]
    return f"{' because of '.join(names)} at {' < '.join(places) or 'an unknown place'}"


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
