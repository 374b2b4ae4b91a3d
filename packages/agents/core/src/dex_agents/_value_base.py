"""What all stored values share: a format version, and repair of what a generic codec leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, TypeVar, cast

ValueT = TypeVar("ValueT", bound="StoredValue")


@dataclass(frozen=True)
class StoredValue:
    """Base of every value that is stored or sent.

    Attributes:
        format_version: Form in which the fields are written. A value from a newer release than
            this one is refused instead of being read with holes.
    """

    FORMAT: ClassVar[int] = 1

    format_version: int = field(default=1, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.format_version > self.FORMAT:
            raise ValueError(
                f"{type(self).__name__} was written in format {self.format_version}, but this "
                f"release reads up to format {self.FORMAT}; upgrade dex-agents"
            )
        self._repair()

    def _repair(self) -> None:
        """Turn fields that a generic JSON codec left as plain data into their types."""

    def _replace_field(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _repair_enum(self, name: str, kind: type[StrEnum]) -> None:
        value = getattr(self, name)
        if type(value) is not kind:
            self._replace_field(name, kind(value))

    def _repair_datetime(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, str):
            self._replace_field(name, datetime.fromisoformat(value))

    def _repair_value(self, name: str, kind: type[StoredValue]) -> None:
        value = getattr(self, name)
        if isinstance(value, Mapping):
            self._replace_field(name, from_mapping(kind, cast(Mapping[str, Any], value)))

    def _repair_values(self, name: str, kind: type[StoredValue]) -> None:
        value = getattr(self, name)
        if type(value) is not tuple:
            self._replace_field(
                name,
                tuple(
                    from_mapping(kind, cast(Mapping[str, Any], item))
                    if isinstance(item, Mapping)
                    else item
                    for item in cast(Iterable[object], value)
                ),
            )

    def _repair_tuple(self, name: str) -> None:
        value = getattr(self, name)
        if type(value) is not tuple:
            self._replace_field(name, tuple(value))

    def _repair_text(self, name: str, inflate: Callable[[Any], Any]) -> None:
        self._replace_field(name, inflate(getattr(self, name)))


def from_mapping(kind: type[ValueT], data: Mapping[str, Any]) -> ValueT:
    """Build a value from decoded JSON of the current format; unknown keys are ignored."""
    names = _field_names(kind)
    if not names.issuperset(data):
        data = {name: value for name, value in data.items() if name in names}
    return kind(**data)


@cache
def _field_names(kind: type[StoredValue]) -> frozenset[str]:
    return frozenset(definition.name for definition in fields(kind))
