"""A compact text form of JSON data in which long strings repeat many times.

A run state names each tool output several times. Here every long string is written once, strings
that the reader has anyway (outputs kept in the tool call records) are written by name, and the
result is compressed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

_PREFIX: Final = "oaz1."
_MARK: Final = "\x00"
_MIN_SHARED_LENGTH: Final = 32
_MIN_KNOWN_LENGTH: Final = 128
#: A state of this size is damage, not data.
_MAX_UNPACKED_BYTES: Final = 256 * 1024 * 1024


class UnpackError(Exception):
    """A packed text is damaged, or a text it refers to is not the one it was written with."""


def pack(value: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """Return JSON data as compact text.

    Args:
        value: Plain JSON data.
        known: Texts by name that `unpack` will be given again, unchanged.
    """
    names = {text: name for name, text in known.items() if len(text) >= _MIN_KNOWN_LENGTH}
    counts: Counter[str] = Counter()

    def count(text: str) -> str:
        counts[text] += 1
        return text

    _map_strings(value, count)
    table: list[str] = []
    places: dict[str, int] = {}
    used: dict[str, str] = {}

    def refer(text: str) -> str:
        if (name := names.get(text)) is not None:
            used[name] = _digest(text)
            return f"{_MARK}k{name}"
        if (counts[text] > 1 and len(text) >= _MIN_SHARED_LENGTH) or text.startswith(_MARK):
            if text not in places:
                places[text] = len(table)
                table.append(text)
            return f"{_MARK}t{places[text]}"
        return text

    body = _map_strings(value, refer)
    raw = json.dumps({"body": body, "table": table, "known": used}, separators=(",", ":"))
    return _PREFIX + base64.b64encode(zlib.compress(raw.encode(), 6)).decode()


def unpack(packed: str, known: Mapping[str, str]) -> dict[str, Any]:
    """Undo `pack`.

    Raises:
        UnpackError: The text is damaged, or `known` lacks or changed a text.
    """
    if not packed.startswith(_PREFIX):
        raise UnpackError("it is not a packed state")
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(
            base64.b64decode(packed[len(_PREFIX) :], validate=True), _MAX_UNPACKED_BYTES
        )
        if not inflater.eof:
            raise ValueError("cut off, or too long")
        document = json.loads(raw)
        body, table, used = document["body"], document["table"], document["known"]
    except (binascii.Error, zlib.error, ValueError, KeyError, TypeError) as error:
        raise UnpackError("it is cut off or damaged") from error
    for name, digest in used.items():
        if name not in known or _digest(known[name]) != digest:
            raise UnpackError(f"the text {name!r} it refers to is missing or has changed")

    def resolve(text: str) -> str:
        if not text.startswith(_MARK):
            return text
        kind, name = text[1:2], text[2:]
        return known[name] if kind == "k" else cast(str, table[int(name)])

    return cast(dict[str, Any], _map_strings(body, resolve))


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        mapping = cast(Mapping[str, Any], value)
        return {key: _map_strings(entry, change) for key, entry in mapping.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(entry, change) for entry in cast(list[Any], value)]
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
