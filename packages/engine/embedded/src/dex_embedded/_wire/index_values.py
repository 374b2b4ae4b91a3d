"""What an attribute write does to the search index: conversion of a value to the index's type."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TypeAlias, cast

from dex.dexpb import dex_pb2 as pb

from dex_embedded._kernel.errors import InvalidRequestError
from dex_embedded._kernel.values import IndexType, IndexWrite

IndexValue: TypeAlias = str | int | float | bool | tuple[str, ...]

_TYPE_OF_KIND = {
    "string_value": IndexType.KEYWORD,
    "obj_value": IndexType.KEYWORD,
    "int_value": IndexType.INT,
    "double_value": IndexType.DOUBLE,
    "bool_value": IndexType.BOOL,
}


def decode_index_write(write: pb.AttributeWrite) -> IndexWrite | None:
    """The index part of a write, or `None` if it leaves the index alone.

    A value that does not convert is skipped: the attribute is written, the index is not touched.
    """
    config = write.index_config
    if not config.enable:
        return None
    key = config.index_key or write.key
    kind = write.value.WhichOneof("kind") or ""
    if config.type:
        try:
            index_type = IndexType(config.type)
        except ValueError:
            raise InvalidRequestError(f"{config.type} is no IndexType") from None
    elif kind == "null_value":
        return IndexWrite(index_key=key, type=IndexType.KEYWORD, value=None)
    else:
        index_type = _TYPE_OF_KIND[kind]
    if kind == "null_value":
        return IndexWrite(index_key=key, type=index_type, value=None)
    converted = _convert(write.value, kind, index_type)
    if converted is None:
        return None
    return IndexWrite(index_key=key, type=index_type, value=converted)


def _convert(value: pb.Value, kind: str, index_type: IndexType) -> IndexValue | None:
    found = cast(object, getattr(value, kind))
    plain = _json_of(found) if isinstance(found, pb.EncodedObject) else found
    match index_type:
        case IndexType.KEYWORD | IndexType.TEXT:
            return plain if isinstance(plain, str) else None
        case IndexType.KEYWORD_ARRAY:
            if not isinstance(plain, list):
                return None
            items = cast(list[object], plain)
            texts = [item for item in items if isinstance(item, str)]
            return tuple(texts) if len(texts) == len(items) else None
        case IndexType.INT:
            return plain if isinstance(plain, int) and not isinstance(plain, bool) else None
        case IndexType.DOUBLE:
            if isinstance(plain, bool) or not isinstance(plain, int | float):
                return None
            return float(plain)
        case IndexType.BOOL:
            return plain if isinstance(plain, bool) else None
        case IndexType.DATETIME:
            return _moment_of(plain) if isinstance(plain, str) else None


def _json_of(encoded: pb.EncodedObject) -> object:
    if encoded.encoding != "json":
        return None
    try:
        return json.loads(encoded.payload)
    except ValueError:
        return None


def _moment_of(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
