"""Types of what a runner may be configured with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

__all__ = ["ContextFactory", "NextTurnAgent"]

#: Makes the context of one Step from the session id and the turn id.
ContextFactory = Callable[[str, str], Any | Awaitable[Any]]

#: Which agent takes the next user message: the one that ended the last turn, or always the first.
NextTurnAgent = Literal["last", "starting"]
