"""The comparison behind WaitForAttribute."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Final

from dex.dexpb import dex_pb2 as pb

from dex_embedded._runtime.call_errors import CallError, CallErrorKind, invalid

_Number = int | float
_ORDER: Final[dict[int, Callable[[_Number, _Number], bool]]] = {
    pb.ATTRIBUTE_MATCH_OPERATOR_GREATER_THAN: operator.gt,
    pb.ATTRIBUTE_MATCH_OPERATOR_GREATER_THAN_OR_EQUAL: operator.ge,
    pb.ATTRIBUTE_MATCH_OPERATOR_LESS_THAN: operator.lt,
    pb.ATTRIBUTE_MATCH_OPERATOR_LESS_THAN_OR_EQUAL: operator.le,
}
_NUMBERS: Final = ("int_value", "double_value")


def matcher_of(match: pb.AttributeMatch) -> Callable[[bytes], bool]:
    """A test of an attribute's value bytes.

    Raises:
        CallError: The operand is no scalar, or the operator does not fit it.
    """
    if not match.key:
        raise invalid("an attribute match names no attribute")
    kind = match.operand.WhichOneof("kind")
    if kind not in ("string_value", "bool_value", *_NUMBERS):
        raise invalid("the operand of an attribute match must be a string, bool or number")
    operand: str | bool | int | float = getattr(match.operand, kind)
    if isinstance(operand, float) and not math.isfinite(operand):
        raise invalid("the operand of an attribute match must be finite")
    order = _ORDER.get(match.operator)
    equality = match.operator in (
        pb.ATTRIBUTE_MATCH_OPERATOR_EQUAL,
        pb.ATTRIBUTE_MATCH_OPERATOR_NOT_EQUAL,
    )
    if order is None and not equality:
        raise invalid("the attribute match has no operator")
    if order is not None and kind not in _NUMBERS:
        raise invalid("strings and bools can only be equal or not")
    wants_equal = match.operator == pb.ATTRIBUTE_MATCH_OPERATOR_EQUAL

    def matches(raw: bytes) -> bool:
        value = pb.Value.FromString(raw)
        found_kind = value.WhichOneof("kind")
        if found_kind == "obj_value":
            raise CallError(
                CallErrorKind.FAILED_PRECONDITION, f"attribute {match.key!r} holds an object"
            )
        comparable = found_kind == kind or (found_kind in _NUMBERS and kind in _NUMBERS)
        if found_kind is None or not comparable:
            return False
        found: str | bool | int | float = getattr(value, found_kind)
        if order is None:
            return (found == operand) is wants_equal
        assert not isinstance(found, str)
        assert not isinstance(operand, str)
        return order(found, operand)

    return matches
