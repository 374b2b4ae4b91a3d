"""Placeholders in script texts, filled from the conversation.

`${user}` is the latest user message and `${user:2}` the second one, `${tool:lookup}` the newest
output of a tool and `${tool:lookup.total}` a field of it when the output is a JSON object,
`${match:order}` a named group of the rule's `user_matches`. `$$` is a dollar sign.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from dex_agents_testkit._script_fields import ScriptError
from dex_agents_testkit.model_server.conversation import Conversation

_PLACEHOLDER: Final = re.compile(r"\$(?:\$|\{(?P<kind>\w+)(?::(?P<name>[^}]*))?\})")
_KINDS: Final = frozenset({"user", "tool", "match"})


class UnfilledPlaceholderError(LookupError):
    """The conversation does not hold what a placeholder asks for."""

    def __init__(self, placeholder: str, problem: str) -> None:
        super().__init__(f"{placeholder}: {problem}")
        self.placeholder = placeholder


def check_template(text: str, place: str) -> None:
    """Refuse placeholders that no conversation could fill.

    Raises:
        ScriptError: A placeholder is of an unknown kind or lacks its name.
    """
    for found in _PLACEHOLDER.finditer(text):
        kind, name = found["kind"], found["name"]
        if kind is None:
            continue
        if kind not in _KINDS:
            raise ScriptError(place, f"{found[0]}: known placeholders are user, tool and match")
        if kind == "user" and name is not None and not re.fullmatch(r"[1-9]\d*", name):
            raise ScriptError(place, f"{found[0]}: expected the number of a user message, from 1")
        if kind != "user" and not name:
            raise ScriptError(place, f"{found[0]}: a name must follow the colon")


def fill_template(
    text: str,
    conversation: Conversation,
    groups: Mapping[str, str | None],
    *,
    encode: Callable[[str], str] = lambda value: value,
) -> str:
    """Replace the placeholders of a text; `encode` is applied to every value that goes in.

    Raises:
        UnfilledPlaceholderError: The conversation lacks a value.
    """

    def value(found: re.Match[str]) -> str:
        if found["kind"] is None:
            return "$"
        return encode(_lookup(found[0], found["kind"], found["name"], conversation, groups))

    return _PLACEHOLDER.sub(value, text)


def fill_json_template(
    text: str, conversation: Conversation, groups: Mapping[str, str | None]
) -> str:
    """Fill a template whose placeholders stand inside JSON strings."""

    def escaped(value: str) -> str:
        return json.dumps(value, ensure_ascii=False)[1:-1]

    return fill_template(text, conversation, groups, encode=escaped)


def _lookup(
    placeholder: str,
    kind: str,
    name: str | None,
    conversation: Conversation,
    groups: Mapping[str, str | None],
) -> str:
    if kind == "user":
        texts = conversation.user_texts
        position = len(texts) if name is None else int(name)
        if not 1 <= position <= len(texts):
            raise UnfilledPlaceholderError(
                placeholder, f"the conversation has {len(texts)} user messages"
            )
        return texts[position - 1]
    if kind == "match":
        value = groups.get(name or "")
        if value is None:
            raise UnfilledPlaceholderError(
                placeholder, "the rule's user_matches captured no such group"
            )
        return value
    tool, _, path = (name or "").partition(".")
    output = conversation.tool_output(tool)
    if output is None:
        raise UnfilledPlaceholderError(placeholder, f"tool {tool!r} has no output yet")
    return _json_field(placeholder, output, path) if path else output


def _json_field(placeholder: str, output: str, path: str) -> str:
    try:
        value: Any = json.loads(output)
    except ValueError:
        raise UnfilledPlaceholderError(placeholder, f"the output is not JSON: {output!r}") from None
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            raise UnfilledPlaceholderError(placeholder, f"the output has no {key!r}: {output!r}")
        value = cast("dict[str, Any]", value)[key]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
