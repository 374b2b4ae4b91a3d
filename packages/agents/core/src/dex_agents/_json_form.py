"""The JSON form of stored values, without the SDK.

One table says what becomes what, so the codecs, the size checks and the tests agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar, cast

from dex_agents import _internal_values as internal
from dex_agents import values as v
from dex_agents._packing import deflate_item, deflate_text
from dex_agents._value_base import StoredValue, from_mapping

ValueT = TypeVar("ValueT", bound=StoredValue)

#: Framework items longer than this many characters are stored compressed.
COMPRESS_ITEM_ABOVE: Final = 1024
#: Tool outputs and payloads longer than this many characters are stored compressed.
COMPRESS_OUTPUT_ABOVE: Final = 64 * 1024

#: Every type that is stored or sent.
VALUE_TYPES: Final[tuple[type[StoredValue], ...]] = (
    v.AgentEvent,
    v.AgentInterrupt,
    v.AgentInterruptResolution,
    v.AgentMessage,
    internal.AgentMessageSizes,
    v.AgentMessagesPage,
    internal.AgentSessionIndex,
    v.AgentSessionStartInput,
    v.AgentSnapshot,
    v.AgentState,
    v.AgentToolCall,
    v.AgentToolOutput,
    v.AgentUsage,
    v.AgentUserMessage,
    internal.KnownMessageId,
    v.ListAgentMessagesRequest,
    internal.ModelStepBudget,
    v.PendingTurnFailure,
    v.ResolveInterruptRequest,
    v.ToolCallCompleted,
    internal.ToolCallEntry,
)

#: How to bring the JSON object of one format up to the next: `{type: {old format: upgrade}}`.
#: An entry is never removed, because a session may have been stored by any release.
UPGRADES: Final[dict[type[StoredValue], dict[int, Callable[[dict[str, Any]], dict[str, Any]]]]] = {}

_PACK: Final[dict[tuple[type[StoredValue], str], Callable[[Any], Any]]] = {
    (v.AgentMessage, "framework_item"): lambda item: deflate_item(item, COMPRESS_ITEM_ABOVE),
    (v.AgentToolCall, "output"): lambda text: deflate_text(text, COMPRESS_OUTPUT_ABOVE),
    (v.AgentToolCall, "framework_payload"): lambda text: deflate_text(text, COMPRESS_OUTPUT_ABOVE),
    (v.AgentToolOutput, "output"): lambda text: deflate_text(text, COMPRESS_OUTPUT_ABOVE),
    (v.AgentToolOutput, "framework_payload"): lambda text: deflate_text(
        text, COMPRESS_OUTPUT_ABOVE
    ),
}


def to_json(value: StoredValue) -> dict[str, Any]:
    """Return a value as an object of plain JSON data."""
    return {
        name: pack(getattr(value, name)) if pack is not None else getattr(value, name)
        for name, pack in _packers(type(value))
    }


def from_json(kind: type[ValueT], data: object) -> ValueT:
    """Read a value of any released format.

    Raises:
        ValueError: The data is no object, lacks a field, or comes from a newer release.
    """
    if not isinstance(data, dict):
        raise ValueError(f"a stored {kind.__name__} must be a JSON object")
    content = cast(dict[str, Any], data)
    version = content.get("format_version", 1)
    if type(version) is not int or version < 1:
        raise ValueError(f"a stored {kind.__name__} has no usable format_version: {version!r}")
    while version < kind.FORMAT:
        content = UPGRADES[kind][version](content)
        version += 1
        content["format_version"] = version
    try:
        return from_mapping(kind, content)
    except TypeError as error:
        raise ValueError(f"a stored {kind.__name__} cannot be read: {error}") from error


def encoded_bytes(value: StoredValue) -> int:
    """Return the size of a value as stored, in bytes."""
    return len(dump(to_json(value)).encode())


@cache
def _packers(
    kind: type[StoredValue],
) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    return tuple(
        (definition.name, _PACK.get((kind, definition.name)) or _plain_packer(definition.type))
        for definition in fields(kind)
    )


def _plain_packer(annotation: object) -> Callable[[Any], Any] | None:
    """Choose how a field becomes JSON data, from its annotation; scalars need nothing."""
    text = str(annotation)
    if "datetime" in text:
        return _pack_datetime
    if "Agent" in text or "ToolCallEntry" in text:
        return _pack_nested
    return None


def _pack_datetime(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def _pack_nested(value: object) -> object:
    if isinstance(value, StoredValue):
        return to_json(value)
    if isinstance(value, tuple):
        return [_pack_nested(item) for item in cast(tuple[object, ...], value)]
    return value


_readable = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_escaped = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def dump(data: Mapping[str, Any] | list[Any]) -> str:
    """Write compact JSON, readable where the text can be encoded at all."""
    text = _readable(data)
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate, as models do produce: JSON can carry it only as an escape.
        return _escaped(data)
    return text
