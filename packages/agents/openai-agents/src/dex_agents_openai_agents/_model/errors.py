"""What a failed model call means for the session: final, or worth another attempt.

A plain run raises at the first failure. Here only failures of the call itself are repeated: a lost
connection, an overloaded or limited provider. Whatever the agent, the request or the model's answer
brings about again is final, so it is paid for once.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import openai
from agents import (
    AgentsException,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OutputGuardrailTripwireTriggered,
)
from agents.exceptions import ModelTimeoutError

from dex_agents import AgentDefinitionError, ModelError, TurnFailedError
from dex_agents_openai_agents import _sdk_internals as sdk

_RETRYABLE_STATUSES: Final = frozenset({408, 409, 425, 429})
#: Codes that a provider reports with a failed response or a 429, and what they mean.
_RETRYABLE_CODES: Final = frozenset(
    {"server_error", "rate_limit_exceeded", "vector_store_timeout", "overloaded_error", "timeout"}
)
_FINAL_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_MAX_DETAIL: Final = 500


class ModelCallLog:
    """What a Step saw of its model call, to judge a failure by.

    Attributes:
        has_started: Whether a request was about to be sent.
        has_answer: Whether the provider sent a complete response.
        has_ended: Whether the provider sent any closing event.
        failure_code: Code of a response that the provider itself declared failed.
        used_call_ids: Tool call ids the turn used before.
        repeated_call_id: An id of the response that was used before, or twice in it.
    """

    def __init__(self) -> None:
        self.has_started = False
        self.has_answer = False
        self.has_ended = False
        self.failure_code: str | None = None
        self.used_call_ids: set[str] = set()
        self.repeated_call_id: str | None = None

    def note_event(self, event: Any) -> None:
        """Remember the closing event of a response stream."""
        kind = getattr(event, "type", None)
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            self.has_ended = True
            self.has_answer = kind == "response.completed"
            self.failure_code = getattr(event.response.error, "code", None)
            for output in event.response.output:
                self._note_call_id(getattr(output, "call_id", None))
        elif kind in ("error", "response.error"):
            self.has_ended = True
            self.failure_code = getattr(event, "code", None)

    def note_refused_response(self, error: ModelBehaviorError) -> None:
        """Remember that the provider sent a whole response that says it failed or was cut off."""
        self.has_ended = True
        # Of a whole response the framework keeps nothing but this text.
        codes = (code for code in _RETRYABLE_CODES if code in error.message)
        self.failure_code = next(codes, None)

    def _note_call_id(self, call_id: str | None) -> None:
        if call_id is None:
            return
        if call_id in self.used_call_ids:
            self.repeated_call_id = call_id
        self.used_call_ids.add(call_id)


def classify_model_step_error(error: Exception, call: ModelCallLog) -> Exception:
    """Return the error that tells the session what to do about a failed model Step.

    Args:
        error: What the framework, the provider's client or the application's code raised.
        call: What was seen of the model call.

    Returns:
        A `TurnFailedError` or a `ModelError`, or `error` itself for what neither this package nor
        the framework knows; the session repeats those.
    """
    raised = sdk.unwrap_tool_error(error)
    if isinstance(raised, openai.OpenAIError | AgentsException):
        # A model call inside an agent tool.
        error = raised
    match error:
        case TurnFailedError() | ModelError():
            return error
        case InputGuardrailTripwireTriggered():
            name = error.guardrail_result.guardrail.get_name()
            return _final(error, f"the input guardrail {name!r} stopped the turn")
        case OutputGuardrailTripwireTriggered():
            name = error.guardrail_result.guardrail.get_name()
            return _final(error, f"the output guardrail {name!r} refused the answer")
        case MaxTurnsExceeded():
            return _final(error, f"{error.message}: the turn needs more model calls than allowed")
        case ModelTimeoutError():
            return _retryable(error, str(error))
        case ModelBehaviorError() if call.has_started and not call.has_answer:
            return _classify_broken_response(error, call)
        case ModelBehaviorError() if call.repeated_call_id is not None:
            return _final(
                error,
                f"the model used the tool call id {call.repeated_call_id!r} for two calls of one "
                "turn, so their results could not be told apart",
            )
        case AgentDefinitionError():
            return _final(error, str(error))
        case RecursionError() if call.has_answer:
            return _final(error, "the model's answer is nested too deeply to be read")
        case AgentsException():
            return _final(error, _detail(str(error)) or type(error).__name__)
        case openai.APIStatusError():
            return _classify_status(error)
        case openai.APIConnectionError():
            return _retryable(error, "the model provider could not be reached")
        case openai.APIError():
            code = error.code or error.type
            message = f"the model provider reported an error: {_detail(error.message)}"
            return (
                _final(error, message)
                if code is not None and code not in _RETRYABLE_CODES
                else _retryable(error, message)
            )
        case openai.OpenAIError():
            return TurnFailedError(
                "the model provider cannot be called: no usable credentials. Set OPENAI_API_KEY "
                "for the worker, or pass a RunConfig with a model provider of your own",
                "ProviderCredentialsMissing",
            )
        case _:
            return error


def _classify_broken_response(error: ModelBehaviorError, call: ModelCallLog) -> Exception:
    if not call.has_ended and not sdk.says_cut_off(error):
        return _retryable(error, "the model's response stream ended before it was complete")
    if call.failure_code in _RETRYABLE_CODES:
        return _retryable(error, f"the model call failed: {call.failure_code}")
    return _final(error, _detail(error.message))


def _classify_status(error: openai.APIStatusError) -> Exception:
    status = error.status_code
    if status in (401, 403):
        # The provider's text repeats a part of the key.
        return _final(
            error,
            f"the model provider refused the credentials ({status}); check OPENAI_API_KEY of the "
            "worker and what the key may use",
        )
    is_repeatable = status in _RETRYABLE_STATUSES or status >= 500
    if not is_repeatable or error.code in _FINAL_CODES:
        return _final(
            error, f"the model provider refused the request ({status}): {_detail(error.message)}"
        )
    return ModelError(
        f"the model provider answered {status}",
        type(error).__name__,
        retry_after=retry_after_seconds(error.response.headers),
    )


def retry_after_seconds(headers: Any, now: datetime | None = None) -> float | None:
    """Return how long a provider asks to wait, in seconds, or `None`.

    Args:
        headers: Response headers; `retry-after-ms` and both forms of `Retry-After` are read.
        now: The present, for a date in the header; the clock by default.
    """
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return _wait(float(milliseconds) / 1000)
        value = headers.get("retry-after")
        if value is None:
            return None
        try:
            return _wait(float(value))
        except ValueError:
            moment = parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return _wait((moment - (now or datetime.now(UTC))).total_seconds())


def _wait(seconds: float) -> float | None:
    return max(seconds, 0.0) if seconds == seconds and seconds != float("inf") else None


def _final(error: Exception, message: str) -> TurnFailedError:
    return TurnFailedError(message, type(error).__name__)


def _retryable(error: Exception, message: str) -> ModelError:
    return ModelError(message, type(error).__name__)


def _detail(text: str) -> str:
    return text if len(text) <= _MAX_DETAIL else text[: _MAX_DETAIL - 1] + "…"
