"""Which failures of a model Step are final, and how long a provider asks to wait."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from agents import MaxTurnsExceeded, ModelBehaviorError, UserError
from agents.exceptions import ModelTimeoutError
from openai import APIError, OpenAIError

from dex_agents import AgentDefinitionError, ModelError, TurnFailedError
from dex_agents_openai_agents._model.errors import (
    ModelCallLog,
    classify_model_step_error,
    retry_after_seconds,
)
from dex_agents_openai_agents._sdk_internals import unwrap_tool_error


def call_log(*kinds: str, code: str | None = None) -> ModelCallLog:
    """What was seen of a call that brought these events."""
    log = ModelCallLog()
    log.has_started = True
    for kind in kinds:
        error = SimpleNamespace(code=code) if code else None
        log.note_event(
            SimpleNamespace(type=kind, code=code, response=SimpleNamespace(error=error, output=[]))
        )
    return log


def api_error(code: str | None) -> APIError:
    return APIError("it failed", None, body={"code": code} if code else None)  # pyright: ignore[reportArgumentType] - no request was made


def case_name(value: object) -> str:
    """Name a case by its error; a log has no name that stays the same from run to run."""
    return repr(value) if isinstance(value, BaseException) else "log"


@pytest.mark.parametrize(
    ("error", "log"),
    [
        (ModelBehaviorError("bad json"), call_log("response.completed")),
        (ModelBehaviorError("cut off"), call_log("response.incomplete")),
        (ModelBehaviorError("refused"), call_log("response.failed", code="invalid_prompt")),
        (ModelBehaviorError("tool gone"), ModelCallLog()),
        (MaxTurnsExceeded("Max turns (3) exceeded"), ModelCallLog()),
        (UserError("wrong use"), ModelCallLog()),
        (AgentDefinitionError("no such agent"), ModelCallLog()),
        (RecursionError(), call_log("response.completed")),
        (OpenAIError("no key"), ModelCallLog()),
        (api_error("context_length_exceeded"), call_log()),
        (TurnFailedError("over"), ModelCallLog()),
    ],
    ids=case_name,
)
def test_what_would_happen_again_is_final(error: Exception, log: ModelCallLog) -> None:
    assert isinstance(classify_model_step_error(error, log), TurnFailedError)


@pytest.mark.parametrize(
    ("error", "log"),
    [
        (ModelBehaviorError("Model did not produce a final response!"), call_log()),
        (ModelBehaviorError("failed"), call_log("response.failed", code="server_error")),
        (ModelBehaviorError("limited"), call_log("error", code="rate_limit_exceeded")),
        (ModelTimeoutError(3), call_log()),
        (api_error("server_error"), call_log()),
        (api_error(None), call_log()),
        (ModelError("again"), ModelCallLog()),
    ],
    ids=case_name,
)
def test_a_failure_of_the_call_itself_may_be_tried_again(
    error: Exception, log: ModelCallLog
) -> None:
    assert isinstance(classify_model_step_error(error, log), ModelError)


def test_only_what_a_tool_raised_is_taken_out_of_the_frameworks_error() -> None:
    cause = ModelBehaviorError("no JSON")
    nested = UserError("Error running tool inner: no JSON")
    other = UserError("Invalid run error handler final_output for structured output.")
    for error in (nested, other):
        error.__cause__ = cause
    kinds = [
        getattr(classify_model_step_error(error, call_log("response.completed")), "error_type", "")
        for error in (nested, other)
    ]
    assert kinds == ["ModelBehaviorError", "UserError"]


def test_what_nobody_here_knows_is_left_to_the_session() -> None:
    error = ValueError("from a callback of the application")
    assert classify_model_step_error(error, ModelCallLog()) is error


NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-4"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "x"}, None),
    ],
    ids=str,
)
def test_the_wait_a_provider_asks_for(headers: dict[str, Any], seconds: float | None) -> None:
    assert retry_after_seconds(headers, NOW) == seconds


def test_only_the_frameworks_own_wrapping_is_taken_off_a_tool_error() -> None:
    body = ValueError("boom")
    wrapped = UserError("Error running tool pay: boom")
    wrapped.__cause__ = body
    assert unwrap_tool_error(wrapped, "pay") is body
    assert unwrap_tool_error(wrapped, "other") is wrapped
    assert unwrap_tool_error(body, "pay") is body
