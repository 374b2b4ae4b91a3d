"""Building blocks of hostile input: bytes, names, and messages of the protocol with odd content."""

from __future__ import annotations

from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

Draw = st.DrawFn

NAMES = st.one_of(
    st.sampled_from(
        ["", "flow", "Probe", "Start", "Start-1", "a/b", "a$b", "a:b", "'; DROP TABLE run; --"]
    ),
    st.sampled_from(["\x00", "\n", "‮", "￿", "ß" * 300, "x" * 70_000, "../../etc", "%s%n"]),
    st.text(max_size=30),
)
"""Names that exist, that break rules, and that are no names at all."""

NUMBERS = st.sampled_from([0, 1, -1, 2, 7, 2**31 - 1, -(2**31)]) | st.integers(-100, 100)
_LONG = NUMBERS | st.sampled_from([2**63 - 1, -(2**63)])
_BYTES = st.binary(max_size=40) | st.sampled_from([b"", b"\xff" * 100, b"{" * 5000])
_FLOATS = st.floats()


def messages(kind: type[Message], depth: int = 3) -> st.SearchStrategy[Any]:
    """Well-formed messages of a kind, each field there or not, with any content."""
    return _messages(cast(Any, kind.DESCRIPTOR), depth)


@st.composite
def _messages(draw: Draw, descriptor: Descriptor, depth: int) -> Message:
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        nested = field.message_type
        if nested is not None and depth == 0:
            continue
        if field.is_repeated:
            for _ in range(draw(st.integers(1, 2))):
                _add(draw, message, field, depth)
        elif nested is not None:
            getattr(message, field.name).CopyFrom(draw(_messages(nested, depth - 1)))
        else:
            setattr(message, field.name, draw(_scalars(field)))
    return message


def _add(draw: Draw, message: Message, field: FieldDescriptor, depth: int) -> None:
    content = getattr(message, field.name)
    nested = field.message_type
    if nested is None:
        content.append(draw(_scalars(field)))
    elif nested.GetOptions().map_entry:
        key = draw(_scalars(nested.fields_by_name["key"]))
        value = nested.fields_by_name["value"]
        if value.message_type is None:
            content[key] = draw(_scalars(value))
        else:
            content[key].CopyFrom(draw(_messages(value.message_type, depth - 1)))
    else:
        content.append(draw(_messages(nested, depth - 1)))


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    kinds = cast(Any, FieldDescriptor)
    if field.enum_type is not None:
        known = [value.number for value in field.enum_type.values]
        return st.sampled_from([*known, 99, -1])
    return {
        kinds.CPPTYPE_STRING: _BYTES if field.type == kinds.TYPE_BYTES else NAMES,
        kinds.CPPTYPE_BOOL: st.booleans(),
        kinds.CPPTYPE_INT32: NUMBERS,
        kinds.CPPTYPE_INT64: _LONG,
        kinds.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
        kinds.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
        kinds.CPPTYPE_DOUBLE: _FLOATS,
        kinds.CPPTYPE_FLOAT: st.floats(width=32),
    }[field.cpp_type]
