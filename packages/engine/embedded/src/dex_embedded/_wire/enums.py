"""Enum numbers as the generated code wants them typed."""

from __future__ import annotations

from typing import Any, TypeVar, cast

_Enum = TypeVar("_Enum")


def proto_enum(_kind: type[_Enum], number: int) -> _Enum:
    """`number` as a value of a protocol enum.

    The stub declares enum classes, the generated code has plain integers; here the two meet.
    """
    return cast(Any, int(number))
