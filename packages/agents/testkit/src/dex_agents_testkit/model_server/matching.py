"""Choosing the answer: a pure function of the script and the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dex_agents_testkit.model_server.calls import (
    ReplyCall,
    ReplyCustomCall,
    ReplyPatchCall,
    ReplyShellCall,
    ReplyToolCall,
)
from dex_agents_testkit.model_server.conversation import Conversation, ItemKind
from dex_agents_testkit.model_server.script import ModelReply, ModelScript, Rule, When
from dex_agents_testkit.model_server.templates import (
    UnfilledPlaceholderError,
    fill_json_template,
    fill_template,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The rule that applies and its reply with every placeholder filled and every call id set."""

    rule: Rule
    reply: ModelReply


class NoScriptedAnswerError(LookupError):
    """The script has no answer for a request. The message says what was asked."""


def find_answer(script: ModelScript, conversation: Conversation) -> Answer:
    """Find the answer of a script to a conversation.

    Raises:
        NoScriptedAnswerError: No rule applies, or the rule that applies asks for a value that the
            conversation does not hold.
    """
    for rule in script.rules:
        groups = _match(rule.when, conversation)
        if groups is None:
            continue
        try:
            return Answer(rule, _fill(rule.reply, conversation, groups))
        except UnfilledPlaceholderError as error:
            raise NoScriptedAnswerError(f"rule {rule.name!r} cannot answer: {error}") from error
    raise NoScriptedAnswerError(
        f"no rule of {script.source} answers {describe(conversation)}; "
        f"rules: {', '.join(repr(rule.name) for rule in script.rules)}"
    )


def describe(conversation: Conversation) -> str:
    """Say in one line where a conversation stands."""
    user = conversation.user_texts[-1] if conversation.user_texts else ""
    outputs = ", ".join(item.tool_name or item.call_id for item in conversation.latest_tool_outputs)
    return (
        f"reply {conversation.reply_number} of turn {conversation.turn} "
        f"(latest user message {user[:120]!r}"
        + (f", then outputs of {outputs}" if outputs else "")
        + f"; tools offered: {', '.join(conversation.offered_tools) or 'none'})"
    )


def _match(when: When, conversation: Conversation) -> Mapping[str, str | None] | None:
    """Return the captured groups when all conditions hold, else None."""
    users = conversation.user_texts
    latest = users[-1] if users else ""
    found = when.user_matches.search(latest) if when.user_matches else None
    conditions = (
        when.turn is None or when.turn == conversation.turn,
        when.reply is None or when.reply == conversation.reply_number,
        not when.user_contains or any(_holds(part, latest) for part in when.user_contains),
        when.user_matches is None or found is not None,
        when.said_before is None or any(_holds(when.said_before, text) for text in users[:-1]),
        when.last is None or _last_kind(conversation) == when.last,
        when.last_tool is None
        or any(item.tool_name == when.last_tool for item in conversation.latest_tool_outputs),
        when.tool_output_contains is None
        or any(
            _holds(when.tool_output_contains, item.text)
            for item in conversation.latest_tool_outputs
        ),
        when.instructions_contain is None
        or _holds(when.instructions_contain, conversation.instructions),
        when.offers_tool is None or when.offers_tool in conversation.offered_tools,
        when.called is None or _called(conversation, when.called),
        when.not_called is None or not _called(conversation, when.not_called),
        when.model is None or when.model == conversation.model,
    )
    if not all(conditions):
        return None
    return found.groupdict() if found else {}


def _holds(part: str, text: str) -> bool:
    return part.casefold() in text.casefold()


def _last_kind(conversation: Conversation) -> str:
    return conversation.items[-1].kind.value if conversation.items else ""


def _called(conversation: Conversation, tool_name: str) -> bool:
    return any(
        item.kind is ItemKind.TOOL_CALL and item.tool_name == tool_name
        for item in conversation.current_turn
    )


def _fill(
    reply: ModelReply, conversation: Conversation, groups: Mapping[str, str | None]
) -> ModelReply:
    def text(template: str) -> str:
        return fill_template(template, conversation, groups)

    calls = tuple(
        _fill_call(call, position, conversation, groups)
        for position, call in enumerate(reply.tool_calls)
    )
    return replace(
        reply,
        text=None if reply.text is None else text(reply.text),
        refusal=None if reply.refusal is None else text(reply.refusal),
        reasoning=tuple(text(summary) for summary in reply.reasoning),
        pieces=None if reply.pieces is None else tuple(text(piece) for piece in reply.pieces),
        tool_calls=calls,
    )


def _fill_call(
    call: ReplyCall,
    position: int,
    conversation: Conversation,
    groups: Mapping[str, str | None],
) -> ReplyCall:
    def text(template: str) -> str:
        return fill_template(template, conversation, groups)

    call_id = call.call_id or f"call_{conversation.fingerprint()[:20]}_{position}"
    match call:
        case ReplyToolCall(arguments=arguments):
            filled = fill_json_template(arguments, conversation, groups)
            return replace(call, arguments=filled, call_id=call_id)
        case ReplyCustomCall():
            return replace(call, input=text(call.input), call_id=call_id)
        case ReplyShellCall(commands=commands):
            return replace(call, commands=tuple(map(text, commands)), call_id=call_id)
        case ReplyPatchCall(path=path, diff=diff):
            diff = None if diff is None else text(diff)
            return replace(call, path=text(path), diff=diff, call_id=call_id)
