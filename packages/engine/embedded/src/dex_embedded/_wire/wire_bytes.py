"""Builds protobuf messages out of parts that are wire bytes already.

Values reach the engine as bytes and leave it as bytes. Joining them costs a fraction of parsing
each into a message object, copying it into a bigger one and serializing that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=4096)
def varint(number: int) -> bytes:
    """The base-128 form of a non-negative number."""
    out = bytearray()
    while number >= 0x80:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


@lru_cache(maxsize=256)
def _tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


@lru_cache(maxsize=1024)
def _pair_up_to_value(key: str) -> bytes:
    """What comes before the length of a pair's value: the same few keys go out all the time."""
    return (message_field(1, key.encode()) if key else b"") + _tag(2, 2)


def message_field(field: int, payload: bytes) -> bytes:
    """A sub-message, string or bytes field; present even when the payload is empty."""
    return _tag(field, 2) + varint(len(payload)) + payload


def text_field(field: int, text: str) -> bytes:
    """A string field; nothing for the empty string, as proto3 has it."""
    return message_field(field, text.encode()) if text else b""


def number_field(field: int, number: int) -> bytes:
    """An integer, bool or enum field; nothing for zero."""
    if not number:
        return b""
    # A negative number is the two's complement in 64 bits on the wire.
    return _tag(field, 0) + varint(number & 0xFFFF_FFFF_FFFF_FFFF)


def texts_field(field: int, texts: Iterable[str]) -> bytes:
    """A repeated string field, empty strings included."""
    return b"".join(message_field(field, text.encode()) for text in texts)


def pair(key: str, value: bytes) -> bytes:
    """A `KV`: `{key = 1, value = 2}`. Map entries have the same form."""
    return _pair_up_to_value(key) + varint(len(value)) + value
