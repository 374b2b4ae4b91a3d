"""Compression of long text inside stored values.

Two forms, both recognisable without the field's context: an *item* (JSON text) becomes a string
with a prefix that no JSON text starts with; other *text* becomes a JSON object, since any string
could be a tool's real output.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import cast

ITEM_PREFIX = "zlib:"
TEXT_KEY = "zlib"
# A value of this size after inflation is damage or an attack, not a message.
MAX_INFLATED_BYTES = 64 * 1024 * 1024


def deflate_item(item: str, threshold: int) -> str:
    """Return JSON text as stored: compressed when it is longer than `threshold` and shrinks."""
    if len(item) <= threshold:
        return item
    packed = ITEM_PREFIX + _pack(item)
    return packed if len(packed) < len(item) else item


def inflate_item(stored: str) -> str:
    """Undo `deflate_item`."""
    if not stored.startswith(ITEM_PREFIX):
        return stored
    return _unpack(stored[len(ITEM_PREFIX) :])


def deflate_text(text: str | None, threshold: int) -> str | dict[str, str] | None:
    """Return any text as stored: an object when it is longer than `threshold` and shrinks."""
    if text is None or len(text) <= threshold:
        return text
    packed = _pack(text)
    return {TEXT_KEY: packed} if len(packed) < len(text) else text


def inflate_text(stored: str | Mapping[str, object] | None) -> str | None:
    """Undo `deflate_text`."""
    if isinstance(stored, Mapping):
        return _unpack(cast(str, stored[TEXT_KEY]))
    return stored


def _pack(text: str) -> str:
    # Lone surrogates occur in model output; they must survive, so they are passed through.
    raw = text.encode("utf-8", "surrogatepass")
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def _unpack(packed: str) -> str:
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(base64.b64decode(packed, validate=True), MAX_INFLATED_BYTES)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"a compressed text is damaged: {error}") from error
    if not inflater.eof:
        raise ValueError("a compressed text is cut off or too long")
    return raw.decode("utf-8", "surrogatepass")
