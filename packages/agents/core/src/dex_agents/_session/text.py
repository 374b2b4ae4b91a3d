"""Text that can be stored, sent and read: encodable and of bounded length."""

from __future__ import annotations

from typing import Final

#: Bytes of error text the SDK passes on at least; longer text would lose its end.
MAX_ERROR_BYTES: Final = 1000
#: Bytes of a failed or rejected call's message that the model gets to read.
MAX_TOOL_ERROR_BYTES: Final = 8 * 1024

_CUT = "... (cut)"


def is_encodable(text: str) -> bool:
    """Whether the text can be sent as UTF-8; a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def make_encodable(text: str) -> str:
    """Return the text with everything that UTF-8 cannot carry written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def bound_bytes(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    """Return encodable text of at most `limit` bytes, cut at a character."""
    encoded = make_encodable(text).encode()
    if len(encoded) <= limit:
        return encoded.decode()
    kept = encoded[: limit - len(_CUT)].decode("utf-8", "ignore")
    return kept + _CUT


def bound_characters(text: str, limit: int) -> str:
    """Return the text, or its beginning with a mark when it is longer than `limit`."""
    return text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT


def error_text(error: BaseException) -> str:
    """Return what an exception says, even when its own `str` fails."""
    try:
        return str(error)
    except Exception:
        return "(an error whose text cannot be shown)"


def describe_error(error: BaseException) -> str:
    """Return `<type>: <text>` of an exception, encodable and bounded."""
    text = error_text(error)
    name = type(error).__name__
    return bound_bytes(f"{name}: {text}" if text else name)
