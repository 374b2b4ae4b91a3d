"""Scripts of the model server: what it answers, as data.

A script is a JSON object with `rules`, `turns`, or both:

* a rule says when it applies (`when`), what to answer (`reply`) and which faults come first;
* `turns` is the short form for a fixed conversation: `turns[1].replies[0]` is the first reply after
  the second user message.

Rules are tried from the top, before the turns; the first that applies answers. Everything a rule
may look at is in the request, so the same request gets the same answer however often it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dex_agents_testkit._script_fields import (
    ScriptError,
    ScriptFields,
    check_format,
    load_script_fields,
)
from dex_agents_testkit.model_server.calls import ReplyCall, read_call
from dex_agents_testkit.model_server.faults import Fault, read_fault
from dex_agents_testkit.model_server.templates import check_template

DEFAULT_PIECE_CHARACTERS: Final = 12
LAST_KINDS: Final = ("user", "assistant", "tool_output")
#: Why a provider ends a response before the model does, in the words of the Responses API.
INCOMPLETE_REASONS: Final = ("max_output_tokens", "content_filter")


@dataclass(frozen=True, slots=True)
class ReplyUsage:
    """Token counts reported with a reply."""

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What the model says once: reasoning summaries, then text, then tool calls.

    `encrypted_reasoning` goes out to requests that ask for it. `incomplete` says why the provider
    ended the response early. `usage` None means an estimate from the lengths; `reports_usage` False
    means that the server reports none at all.
    """

    text: str | None = None
    refusal: str | None = None
    reasoning: tuple[str, ...] = ()
    encrypted_reasoning: str | None = None
    tool_calls: tuple[ReplyCall, ...] = ()
    incomplete: str | None = None
    usage: ReplyUsage | None = None
    reports_usage: bool = True
    pieces: tuple[str, ...] | None = None
    piece_characters: int = DEFAULT_PIECE_CHARACTERS
    piece_delay: float = 0.0


@dataclass(frozen=True, slots=True)
class When:
    """Conditions on a conversation; every one that is set must hold."""

    turn: int | None = None
    reply: int | None = None
    user_contains: tuple[str, ...] = ()
    user_matches: re.Pattern[str] | None = None
    said_before: str | None = None
    last: str | None = None
    last_tool: str | None = None
    tool_output_contains: str | None = None
    instructions_contain: str | None = None
    offers_tool: str | None = None
    called: str | None = None
    not_called: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One answer and the conversations it is for. `faults` hit the first tries, in order."""

    name: str
    when: When
    reply: ModelReply
    faults: tuple[Fault, ...] = ()

    def fault_for_try(self, number: int) -> Fault | None:
        """Return the fault of the `number`th try (from 1) of one request, if it has one."""
        for fault in self.faults:
            if number <= fault.times:
                return fault
            number -= fault.times
        return None


@dataclass(frozen=True, slots=True)
class ModelScript:
    """A checked script."""

    rules: tuple[Rule, ...]
    source: str = "script"


def load_model_script(path: str | Path) -> ModelScript:
    """Read a script file.

    Raises:
        ScriptError: The file cannot be used; the message names the place in it.
    """
    return _read_script(load_script_fields(path), str(path))


def parse_model_script(script: Mapping[str, Any]) -> ModelScript:
    """Check a script given as plain data.

    Raises:
        ScriptError: The script cannot be used; the message names the place in it.
    """
    return _read_script(check_format(ScriptFields(dict(script), "script")), "script")


def _read_script(fields: ScriptFields, source: str) -> ModelScript:
    rules = fields.each("rules", _read_rule)
    turns = fields.each("turns", _read_turn)
    fields.optional_text("about")
    fields.end()
    if not rules and not turns:
        raise ScriptError(fields.place, "has neither rules nor turns, so it could answer nothing")
    in_turns = tuple(
        rule for number, turn in enumerate(turns, 1) for rule in _rules_of_turn(number, turn)
    )
    return ModelScript(rules + in_turns, source)


@dataclass(frozen=True, slots=True)
class _Turn:
    user_contains: tuple[str, ...]
    replies: tuple[tuple[ModelReply, tuple[Fault, ...]], ...]


def _read_turn(value: object, place: str) -> _Turn:
    fields = ScriptFields(value, place)
    turn = _Turn(fields.texts("user_contains"), fields.each("replies", _read_reply_with_faults))
    fields.end()
    if not turn.replies:
        raise fields.error("replies", "a turn needs at least one reply")
    return turn


def _rules_of_turn(number: int, turn: _Turn) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            f"turn {number}, reply {position}",
            When(turn=number, reply=position, user_contains=turn.user_contains),
            reply,
            faults,
        )
        for position, (reply, faults) in enumerate(turn.replies, 1)
    )


def _read_rule(value: object, place: str) -> Rule:
    fields = ScriptFields(value, place)
    rule = Rule(
        name=fields.text("name", place),
        when=_read_when(fields.optional_fields("when")),
        reply=_read_reply(fields.fields("reply")),
        faults=fields.each("faults", read_fault),
    )
    fields.end()
    return rule


def _read_when(fields: ScriptFields | None) -> When:
    if fields is None:
        return When()
    pattern = fields.optional_text("user_matches")
    last = fields.optional_text("last")
    if last is not None and last not in LAST_KINDS:
        raise fields.error("last", f"expected one of {', '.join(LAST_KINDS)}, found {last!r}")
    try:
        user_matches = None if pattern is None else re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise fields.error("user_matches", f"is not a regular expression: {error}") from error
    when = When(
        turn=fields.optional_integer("turn", minimum=1),
        reply=fields.optional_integer("reply", minimum=1),
        user_contains=fields.texts("user_contains"),
        user_matches=user_matches,
        said_before=fields.optional_text("said_before"),
        last=last,
        last_tool=fields.optional_text("last_tool"),
        tool_output_contains=fields.optional_text("tool_output_contains"),
        instructions_contain=fields.optional_text("instructions_contain"),
        offers_tool=fields.optional_text("offers_tool"),
        called=fields.optional_text("called"),
        not_called=fields.optional_text("not_called"),
        model=fields.optional_text("model"),
    )
    fields.end()
    return when


def _read_reply_with_faults(value: object, place: str) -> tuple[ModelReply, tuple[Fault, ...]]:
    fields = ScriptFields(value, place)
    faults = fields.each("faults", read_fault)
    return _read_reply(fields), faults


def _read_reply(fields: ScriptFields) -> ModelReply:
    reports_usage = "usage" not in fields or fields.anything("usage") is not None
    reply = ModelReply(
        text=fields.optional_text("text"),
        refusal=fields.optional_text("refusal"),
        reasoning=fields.texts("reasoning"),
        encrypted_reasoning=fields.optional_text("encrypted_reasoning"),
        tool_calls=fields.each("tool_calls", read_call),
        incomplete=fields.optional_text("incomplete"),
        usage=_read_usage(fields.optional_fields("usage")),
        reports_usage=reports_usage,
        pieces=fields.texts("pieces") if "pieces" in fields else None,
        piece_characters=fields.integer("piece_characters", DEFAULT_PIECE_CHARACTERS, minimum=1),
        piece_delay=fields.seconds("piece_delay", 0.0),
    )
    fields.end()
    if reply.incomplete is not None and reply.incomplete not in INCOMPLETE_REASONS:
        raise fields.error(
            "incomplete",
            f"expected one of {', '.join(INCOMPLETE_REASONS)}, found {reply.incomplete!r}",
        )
    says_nothing = reply.text is None and reply.refusal is None and not reply.tool_calls
    if says_nothing and reply.incomplete is None:
        raise ScriptError(fields.place, "a reply needs text, a refusal or tool calls")
    if reply.text is not None and reply.refusal is not None:
        raise ScriptError(fields.place, "a reply has either text or a refusal")
    if reply.pieces is not None and "".join(reply.pieces) != reply.text:
        raise fields.error("pieces", "the pieces put together must be exactly the text")
    for text in (reply.text, reply.refusal, *reply.reasoning):
        check_template(text or "", fields.place)
    return reply


def _read_usage(fields: ScriptFields | None) -> ReplyUsage | None:
    if fields is None:
        return None
    usage = ReplyUsage(
        input_tokens=fields.integer("input_tokens"),
        output_tokens=fields.integer("output_tokens"),
        cached_input_tokens=fields.integer("cached_input_tokens", 0),
        reasoning_tokens=fields.integer("reasoning_tokens", 0),
    )
    fields.end()
    return usage
