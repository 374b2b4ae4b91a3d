"""Explicit codecs for every stored value.

Pass them to the Registry: `Registry([flow], CodecRegistry(agent_codecs()), ...)`. A Registry
without them works too, but it can neither compress long items nor read values of older releases,
and it is several times slower. The sizes by which a session's history is loaded in parts are those
of the explicit codecs, so use them for sessions that grow beyond a few megabytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from dex import Codec, CodecRegistry, Value, WireKind

from dex_agents import values as v
from dex_agents._json_form import VALUE_TYPES, dump, from_json, to_json
from dex_agents._value_base import StoredValue

__all__ = ["ListCodec", "ValueCodec", "agent_codecs", "uses_agent_codecs"]

ValueT = TypeVar("ValueT", bound=StoredValue)


@dataclass(frozen=True)
class ValueCodec(Generic[ValueT]):
    """Codec of one stored type."""

    kind: type[ValueT]
    wire_kind: WireKind = WireKind.JSON

    @property
    def type_name(self) -> str:
        """Name of the type in error messages."""
        return self.kind.__name__

    def encode(self, value: ValueT) -> Value:
        """Return the value as JSON text.

        Raises:
            TypeError: The value is of another type.
        """
        if type(value) is not self.kind:
            raise TypeError(f"expected {self.type_name}, got {type(value).__name__}")
        return Value(WireKind.JSON, dump(to_json(value)))

    def decode(self, value: Value) -> ValueT:
        """Read a value of any released format.

        Raises:
            TypeError: The wire kind is wrong.
            ValueError: The content cannot be read.
        """
        return from_json(self.kind, _load(value, self.type_name))


@dataclass(frozen=True)
class ListCodec(Generic[ValueT]):
    """Codec of a list of one stored type."""

    kind: type[ValueT]
    wire_kind: WireKind = WireKind.JSON

    @property
    def type_name(self) -> str:
        """Name of the type in error messages."""
        return f"list[{self.kind.__name__}]"

    def encode(self, value: list[ValueT]) -> Value:
        """Return the list as JSON text.

        Raises:
            TypeError: The value is no list, or an item is of another type.
        """
        if type(value) is not list or any(type(item) is not self.kind for item in value):
            raise TypeError(f"expected {self.type_name}")
        return Value(WireKind.JSON, dump([to_json(item) for item in value]))

    def decode(self, value: Value) -> list[ValueT]:
        """Read a list.

        Raises:
            TypeError: The wire kind is wrong.
            ValueError: The content cannot be read.
        """
        items = _load(value, self.type_name)
        if not isinstance(items, list):
            raise ValueError(f"a stored {self.type_name} must be a JSON list")
        return [from_json(self.kind, item) for item in cast(list[object], items)]


def agent_codecs() -> dict[object, Codec[Any]]:
    """Return the codecs of every stored type, for `dex.CodecRegistry`.

    Merge them with your own: `CodecRegistry({**agent_codecs(), Money: money_codec})`.
    """
    codecs: dict[object, Codec[Any]] = {kind: ValueCodec(kind) for kind in VALUE_TYPES}
    codecs[list[v.AgentInterrupt]] = ListCodec(v.AgentInterrupt)
    return codecs


def uses_agent_codecs(registry: CodecRegistry) -> bool:
    """Whether a Registry's codecs contain the explicit ones."""
    return isinstance(registry.resolve(v.AgentState), ValueCodec)


def _load(value: Value, type_name: str) -> object:
    if value.kind is not WireKind.JSON or not isinstance(value.data, str):
        raise TypeError(f"{type_name} requires a JSON value")
    return json.loads(value.data)
