"""The one error type a command ends with."""

from __future__ import annotations


class ToolError(Exception):
    """A command cannot go on; the text says what is wrong and what to do about it."""
