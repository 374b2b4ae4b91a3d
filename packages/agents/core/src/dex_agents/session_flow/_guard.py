"""One guard around every handler: what leaves a Step or an RPC can always be sent.

Without it, an error whose text cannot be encoded leaves no final frame, and the engine would offer
the same paid model call again and again. The guard also keeps a library's own `CancelledError` from
looking like a cancellation by the engine, and raises the SDK's frozen retry error outside of every
`with`, where it survives.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import traceback
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any, ParamSpec, TypeVar

from dex import retry_after

from dex_agents._session.text import describe_error, is_encodable, make_encodable
from dex_agents.errors import DexAgentsError

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_LOG = logging.getLogger("dex_agents")


class StepFailedError(DexAgentsError):
    """What a failed attempt reports: the type and text of the original error, safe to send."""


class RetryLaterError(DexAgentsError):
    """Asks the guard to fail the attempt and to delay the next one.

    Attributes:
        text: What the attempt reports.
        seconds: Whole seconds to wait, at least 1.
    """

    def __init__(self, text: str, seconds: int) -> None:
        super().__init__(text)
        self.text = text
        self.seconds = seconds


def guarded(
    handler: Callable[P, Awaitable[ResultT]],
) -> Callable[P, CoroutineType[Any, Any, ResultT]]:
    """Guard an asynchronous `execute`."""

    @functools.wraps(handler)
    async def guard(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        try:
            return await handler(*args, **kwargs)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            failure: BaseException = _clean(error)
        except RetryLaterError as later:
            failure = retry_after(later.seconds, StepFailedError(later.text))
        except Exception as error:
            failure = _clean(error)
        raise failure from None

    return guard


def guarded_sync(handler: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Guard a synchronous `wait_for` or RPC."""

    @functools.wraps(handler)
    def guard(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        try:
            return handler(*args, **kwargs)
        except Exception as error:
            failure = _clean(error)
        raise failure from None

    return guard


def is_being_cancelled() -> bool:
    """Whether the running task itself was cancelled, and not just something inside it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _clean(error: BaseException) -> StepFailedError:
    if isinstance(error, StepFailedError):
        return error
    text = describe_error(error)
    # Formatted here, because a log handler would lose a line that it cannot encode.
    trace = make_encodable("".join(traceback.format_exception(error)))
    _LOG.warning("a handler failed: %s\n%s", text, trace.rstrip())
    clean = StepFailedError(text)
    if is_encodable("".join(traceback.format_tb(error.__traceback__))):
        clean = clean.with_traceback(error.__traceback__)
    return clean
