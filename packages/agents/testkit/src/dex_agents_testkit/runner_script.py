"""Scripts of `ScriptedRunner`: what its model says and what its tools do, as data.

As JSON, a script looks like this (every key but `replies` may be left out):

    {
      "tools": {"refund": {"effect": "non_idempotent_write", "output": "refunded $order"}},
      "turns": [
        {"user": "refund order 7", "replies": [
          {"tool_calls": [{"id": "c1", "name": "refund", "arguments": {"order": "7"}}]},
          {"message": "Done."}
        ]}
      ]
    }

Turn `turn-<n>` of a session is played from `turns[n - 1]`, and within it the replies follow one
another, one per model Step. With `"turn_in_message": true` the user's message is itself the JSON
of a turn, so that every session can play something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from dex_agents.values import AgentUsage, ToolEffect
from dex_agents_testkit._script_fields import (
    ScriptError,
    ScriptFields,
    check_format,
    load_script_fields,
)

MODEL_CALL: Final = "run_model_step"


class FailureKind(StrEnum):
    """How a scripted attempt fails.

    `MODEL_ERROR` raises `ModelError`, `EXCEPTION` a plain exception, `CRASH` ends the process with
    SIGKILL, as a power cut would.
    """

    MODEL_ERROR = "model_error"
    EXCEPTION = "exception"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
    """Failures of the first attempts of one Step, before it succeeds.

    Attributes:
        message: Text of the error.
        kind: How the attempt fails.
        error_type: Type name carried by a `ModelError`.
        attempts: How many attempts fail like this.
        retry_after: Seconds a `ModelError` asks to wait.
    """

    message: str = "scripted failure"
    kind: FailureKind = FailureKind.EXCEPTION
    error_type: str = ""
    attempts: int = 1
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class ScriptedToolCall:
    """One tool call of a reply.

    Attributes:
        tool_call_id: Its id.
        tool_name: The tool.
        arguments: JSON text of the arguments.
        requires_approval: The framework's own approval rule for this call.
    """

    tool_call_id: str
    tool_name: str
    arguments: str = "{}"
    requires_approval: bool | None = None


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """What one model call does.

    It has exactly one outcome: `message`, `tool_calls`, `continues` or `turn_failure`.

    Attributes:
        message: The final answer of the turn.
        tool_calls: Tools the model asks for.
        continues: The turn goes on without a tool, as after a handoff.
        turn_failure: The turn fails for good with this text.
        turn_failure_type: Error type of that failure.
        text: What the model says next to its tool calls.
        deltas: Streamed pieces; by default the whole text is one.
        reasoning: Streamed pieces of reasoning.
        usage: Reported usage; one call without tokens by default.
        failures: How the first attempts fail.
        delay: Seconds the call takes.
        gate: Name of a `FileGate` the call stops at, after its deltas.
    """

    message: str | None = None
    tool_calls: tuple[ScriptedToolCall, ...] = ()
    continues: bool = False
    turn_failure: str | None = None
    turn_failure_type: str = ""
    text: str = ""
    deltas: tuple[str, ...] | None = None
    reasoning: tuple[str, ...] = ()
    usage: AgentUsage = field(default_factory=lambda: AgentUsage(model_calls=1))
    failures: tuple[ScriptedFailure, ...] = ()
    delay: float = 0.0
    gate: str | None = None

    def __post_init__(self) -> None:
        outcomes = (
            self.message is not None,
            bool(self.tool_calls),
            self.continues,
            self.turn_failure is not None,
        )
        if sum(outcomes) != 1:
            raise ScriptError(
                "reply", "exactly one of message, tool_calls, continues and turn_failure is needed"
            )


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """The replies of one turn, and what the user must have said for them to fit."""

    replies: tuple[ScriptedReply, ...]
    user: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptedTool:
    """What a tool does when it is called.

    Attributes:
        output: Text it returns; `$name` is replaced by the argument of that name.
        effect: Effect its policy gets.
        requires_approval: Approval its policy asks for; `None` leaves it to the effect.
        error: Text of a `ToolExecutionError` instead of an output.
        failures: How the first attempts fail, before anything is done.
        delay: Seconds a call takes.
        gate_before: A `FileGate` before the effect, that is before the call is recorded.
        gate_after: A `FileGate` between the effect and the result.
        usage: Usage of a model inside the tool.
    """

    output: str = "ok"
    effect: ToolEffect = ToolEffect.READ
    requires_approval: bool | None = None
    error: str | None = None
    failures: tuple[ScriptedFailure, ...] = ()
    delay: float = 0.0
    gate_before: str | None = None
    gate_after: str | None = None
    usage: AgentUsage | None = None


@dataclass(frozen=True, slots=True)
class RunnerScript:
    """A whole script.

    Attributes:
        turns: What happens in each turn of every session.
        tools: The tools, by name.
        turn_in_message: Each user message is the JSON of its own turn.
    """

    turns: tuple[ScriptedTurn, ...] = ()
    tools: Mapping[str, ScriptedTool] = field(default_factory=dict[str, ScriptedTool])
    turn_in_message: bool = False

    def __post_init__(self) -> None:
        if not self.turns and not self.turn_in_message:
            raise ScriptError("script", "has no turns, so it could answer nothing")
        if MODEL_CALL in self.tools:
            raise ScriptError(
                "script.tools", f"{MODEL_CALL!r} is the name under which model calls are recorded"
            )


def load_runner_script(path: str | Path) -> RunnerScript:
    """Read a script file.

    Raises:
        ScriptError: The file cannot be used; the message names the place in it.
    """
    return _read_script(load_script_fields(path))


def parse_runner_script(script: Mapping[str, Any]) -> RunnerScript:
    """Check a script given as plain data.

    Raises:
        ScriptError: The script cannot be used; the message names the place in it.
    """
    return _read_script(check_format(ScriptFields(dict(script), "script")))


def parse_turn_message(text: str) -> ScriptedTurn:
    """Read a turn from a user message, for scripts with `turn_in_message`.

    Raises:
        ScriptError: The message is not the JSON of a turn.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ScriptError("user message", f"is not the JSON of a turn: {error}") from error
    return _read_turn(value, "user message")


def _read_script(fields: ScriptFields) -> RunnerScript:
    fields.optional_text("about")
    tools = fields.named("tools", _read_tool)
    turns = fields.each("turns", _read_turn)
    in_message = fields.flag("turn_in_message", False)
    fields.end()
    return RunnerScript(turns, tools, in_message)


def _read_turn(value: object, place: str) -> ScriptedTurn:
    fields = ScriptFields(value, place)
    turn = ScriptedTurn(fields.each("replies", _read_reply), fields.optional_text("user"))
    fields.end()
    if not turn.replies:
        raise fields.error("replies", "a turn needs at least one reply")
    return turn


def _read_reply(value: object, place: str) -> ScriptedReply:
    fields = ScriptFields(value, place)
    usage = fields.optional_fields("usage")
    values: dict[str, Any] = {
        "message": fields.optional_text("message"),
        "tool_calls": fields.each("tool_calls", _read_tool_call),
        "continues": fields.flag("continues", False),
        "turn_failure": fields.optional_text("turn_failure"),
        "turn_failure_type": fields.text("turn_failure_type", ""),
        "text": fields.text("text", ""),
        "deltas": fields.texts("deltas") if "deltas" in fields else None,
        "reasoning": fields.texts("reasoning"),
        "failures": fields.each("failures", _read_failure),
        "delay": fields.seconds("delay", 0.0),
        "gate": fields.optional_text("gate"),
    }
    if usage is not None:
        values["usage"] = _read_usage(usage)
    fields.end()
    try:
        return ScriptedReply(**values)
    except ScriptError as error:
        raise ScriptError(place, error.problem) from None


def _read_tool_call(value: object, place: str) -> ScriptedToolCall:
    fields = ScriptFields(value, place)
    given = fields.anything("arguments", {})
    approval = fields.anything("requires_approval", None)
    call = ScriptedToolCall(
        fields.text("id"),
        fields.text("name"),
        # Text goes through as it is, so that a script can send arguments that are not JSON.
        given if isinstance(given, str) else json.dumps(given),
        None if approval is None else bool(approval),
    )
    fields.end()
    return call


def _read_failure(value: object, place: str) -> ScriptedFailure:
    fields = ScriptFields(value, place)
    retry_after = fields.optional_seconds("retry_after")
    default = FailureKind.EXCEPTION if retry_after is None else FailureKind.MODEL_ERROR
    kind = fields.text("kind", default.value)
    try:
        failure_kind = FailureKind(kind)
    except ValueError:
        known = ", ".join(FailureKind)
        raise fields.error("kind", f"expected one of {known}, found {kind!r}") from None
    failure = ScriptedFailure(
        message=fields.text("message", "scripted failure"),
        kind=failure_kind,
        error_type=fields.text("error_type", ""),
        attempts=fields.integer("attempts", 1, minimum=1),
        retry_after=retry_after,
    )
    fields.end()
    return failure


def _read_tool(value: object, place: str) -> ScriptedTool:
    fields = ScriptFields(value, place)
    effect = fields.text("effect", ToolEffect.READ.value)
    if effect not in set(ToolEffect):
        raise fields.error("effect", f"expected one of {', '.join(ToolEffect)}, found {effect!r}")
    approval = fields.anything("requires_approval", None)
    usage = fields.optional_fields("usage")
    tool = ScriptedTool(
        output=fields.text("output", "ok"),
        effect=ToolEffect(effect),
        requires_approval=None if approval is None else bool(approval),
        error=fields.optional_text("error"),
        failures=fields.each("failures", _read_failure),
        delay=fields.seconds("delay", 0.0),
        gate_before=fields.optional_text("gate_before"),
        gate_after=fields.optional_text("gate_after"),
        usage=None if usage is None else _read_usage(usage),
    )
    fields.end()
    return tool


def _read_usage(fields: ScriptFields) -> AgentUsage:
    input_tokens = fields.integer("input_tokens", 0)
    output_tokens = fields.integer("output_tokens", 0)
    usage = AgentUsage(
        model_calls=fields.integer("model_calls", 1),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=fields.integer("total_tokens", input_tokens + output_tokens),
        cached_input_tokens=fields.integer("cached_input_tokens", 0),
        reasoning_tokens=fields.integer("reasoning_tokens", 0),
    )
    fields.end()
    return usage
