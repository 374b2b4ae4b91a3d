"""Strict reading of script files: every complaint names the place in the file.

Scripts are written by hand, so a typo must not be read as a default: a key nobody asked for is an
error, just like a value of the wrong kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

SCRIPT_FORMAT: Final = 1

T = TypeVar("T")
_MISSING: Final[Any] = object()


class ScriptError(ValueError):
    """A script cannot be used as written. The message names the place and what belongs there."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem


class ScriptFields:
    """One JSON object of a script, read key by key and then closed with `end()`."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, dict):
            raise ScriptError(place, f"expected an object, found {_kind(value)}")
        self._values = cast("dict[str, object]", value)
        self._unread = set(self._values)
        self.place = place

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def at(self, key: str) -> str:
        """Name the place of one key, for messages."""
        return f"{self.place}.{key}"

    def error(self, key: str, problem: str) -> ScriptError:
        """Build the error for a value that has the right kind but is wrong for another reason."""
        return ScriptError(self.at(key), problem)

    def text(self, key: str, default: str = _MISSING) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"expected text, found {_kind(value)}")
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self._values.get(key) is not None else self._skip(key)

    def integer(self, key: str, default: int = _MISSING, *, minimum: int = 0) -> int:
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"expected a whole number, found {_kind(value)}")
        if value < minimum:
            raise self.error(key, f"expected at least {minimum}, found {value}")
        return value

    def optional_integer(self, key: str, *, minimum: int = 0) -> int | None:
        if self._values.get(key) is None:
            return self._skip(key)
        return self.integer(key, minimum=minimum)

    def seconds(self, key: str, default: float = _MISSING) -> float:
        value = self._take(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 86_400:
            raise self.error(key, f"expected a number of seconds, found {_kind(value)}")
        return float(value)

    def optional_seconds(self, key: str) -> float | None:
        return self.seconds(key) if self._values.get(key) is not None else self._skip(key)

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, found {_kind(value)}")
        return value

    def anything(self, key: str, default: object = _MISSING) -> Any:
        return self._take(key, default)

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Read one text or a list of texts."""
        value = self._take(key, default)
        if isinstance(value, str):
            return (value,)
        return self.each(key, _as_text, value)

    def fields(self, key: str) -> ScriptFields:
        return ScriptFields(self._take(key, _MISSING), self.at(key))

    def optional_fields(self, key: str) -> ScriptFields | None:
        return self.fields(key) if self._values.get(key) is not None else self._skip(key)

    def each(
        self, key: str, read: Callable[[object, str], T], value: object = _MISSING
    ) -> tuple[T, ...]:
        """Read a list with `read(item, place)`; an absent key is an empty list."""
        items = self._take(key, ()) if value is _MISSING else value
        if not isinstance(items, list | tuple):
            raise self.error(key, f"expected a list, found {_kind(items)}")
        listed = cast("Iterable[object]", items)
        return tuple(read(item, f"{self.at(key)}[{n}]") for n, item in enumerate(listed))

    def named(self, key: str, read: Callable[[object, str], T]) -> dict[str, T]:
        """Read an object whose keys are names; an absent key is an empty object."""
        value = self._take(key, {})
        if not isinstance(value, dict):
            raise self.error(key, f"expected an object, found {_kind(value)}")
        entries = cast("dict[str, object]", value)
        return {name: read(item, f"{self.at(key)}.{name}") for name, item in entries.items()}

    def end(self) -> None:
        """Refuse keys that nothing has read.

        Raises:
            ScriptError: A key is unknown here.
        """
        if self._unread:
            known = sorted(set(self._values) - self._unread)
            raise ScriptError(
                self.place,
                f"unknown {_plural(len(self._unread), 'key')} {_listed(self._unread)}"
                + (f" (understood here: {_listed(known)})" if known else ""),
            )

    def _take(self, key: str, default: object) -> object:
        self._unread.discard(key)
        value = self._values.get(key, default)
        if value is _MISSING:
            raise ScriptError(self.place, f"{key!r} is missing")
        return value

    def _skip(self, key: str) -> None:
        self._unread.discard(key)


def load_script_fields(path: str | Path) -> ScriptFields:
    """Read a script file and check its format number.

    Raises:
        ScriptError: The file is missing, is not JSON, or is of another format.
    """
    place = Path(path).name
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ScriptError(str(path), f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ScriptError(str(path), f"is not JSON: {error}") from error
    return check_format(ScriptFields(value, place))


def check_format(fields: ScriptFields) -> ScriptFields:
    """Take the optional `format` key of a script and refuse any other number than ours."""
    number = fields.integer("format", SCRIPT_FORMAT)
    if number != SCRIPT_FORMAT:
        raise fields.error("format", f"this version reads format {SCRIPT_FORMAT}, found {number}")
    return fields


def _as_text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise ScriptError(place, f"expected text, found {_kind(value)}")
    return value


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return f"the text {value[:40]!r}"
        case int() | float():
            return f"the number {value}"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
        case _:
            return type(value).__name__


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
