"""Ids and keys of a session, and which ones are refused."""

from __future__ import annotations

from typing import Final

from dex_agents._session.text import is_encodable
from dex_agents.errors import (
    AgentDefinitionError,
    InvalidMessageIdError,
    InvalidSessionIdError,
    RunnerContractError,
)

#: Turns whose message ids are remembered. An id that is used again later counts as new.
REMEMBERED_TURNS: Final = 1000
MAX_MESSAGE_ID_CHARACTERS: Final = 256
MAX_TOOL_CALL_ID_CHARACTERS: Final = 512

# `/` would end the session's part of an idempotency key; `:` and `$` are used by engines.
_REFUSED_IN_SESSION_IDS: Final = "/:$"
_TURN_PREFIX: Final = "turn-"


def turn_id(number: int) -> str:
    """Return the id of the `number`-th turn of a session, from 1."""
    return f"{_TURN_PREFIX}{number}"


def interrupt_id(turn: str, tool_call_id: str) -> str:
    """Return the id of the approval of one call. Opaque to callers.

    The turn is part of it, so a late answer never reaches a call of a later turn that happens to
    have the same id.
    """
    return f"{turn}~{tool_call_id}"


def idempotency_key(flow_id: str, turn: str, tool_call_id: str) -> str:
    """Return the key a tool may use to make its write repeatable."""
    return f"{flow_id}/{turn}/{tool_call_id}"


def message_id_key(message_id: str) -> str:
    """Return the map key of a message id. Different ids have different keys."""
    return message_id.replace("%", "%25").replace("/", "%2F").replace("~", "%7E")


def turn_slot_key(number: int) -> str:
    """Return the map key under which a turn's message id is remembered.

    Slots are reused after `REMEMBERED_TURNS` turns: whoever writes one drops the id in it. The
    leading `~` keeps slots apart from ids, where it is escaped.
    """
    return f"~{number % REMEMBERED_TURNS}"


def check_session_id(session_id: str) -> None:
    """Refuse a session id that an engine or an idempotency key could not carry.

    Raises:
        InvalidSessionIdError: The id is blank, cannot be encoded, or holds a refused character.
    """
    if not session_id.strip():
        raise InvalidSessionIdError(session_id, "a session id must not be blank")
    if not is_encodable(session_id):
        raise InvalidSessionIdError(
            session_id, f"session id {session_id!r} holds a character that UTF-8 cannot carry"
        )
    for character in _REFUSED_IN_SESSION_IDS:
        if character in session_id:
            raise InvalidSessionIdError(
                session_id,
                f"session id {session_id!r} holds {character!r}, which is not allowed; "
                "use for example '-' or '_'",
                character,
            )


def check_flow_type(flow_type: str) -> None:
    """Refuse a Flow type that an engine could not carry.

    Raises:
        AgentDefinitionError: The name is blank or holds a refused character.
    """
    if not flow_type.strip():
        raise AgentDefinitionError("flow_type must not be blank")
    for character in _REFUSED_IN_SESSION_IDS:
        if character in flow_type:
            raise AgentDefinitionError(
                f"flow_type {flow_type!r} holds {character!r}, which is not allowed"
            )


def check_message_id(session_id: str, message_id: str) -> None:
    """Refuse a message id that cannot be a key.

    Raises:
        InvalidMessageIdError: The id is blank, too long or cannot be encoded.
    """
    if not message_id.strip():
        raise InvalidMessageIdError(session_id, message_id, "a message id must not be blank")
    if len(message_id) > MAX_MESSAGE_ID_CHARACTERS:
        raise InvalidMessageIdError(
            session_id,
            message_id,
            f"a message id has at most {MAX_MESSAGE_ID_CHARACTERS} characters, "
            f"not {len(message_id)}",
        )
    if not is_encodable(message_id):
        raise InvalidMessageIdError(
            session_id,
            message_id,
            f"message id {message_id!r} holds a character that UTF-8 cannot carry",
        )


def check_tool_call_id(tool_call_id: str) -> None:
    """Refuse a tool call id that cannot be a key.

    Raises:
        RunnerContractError: The id is blank, holds `/`, is too long or cannot be encoded.
    """
    if not tool_call_id.strip():
        raise RunnerContractError(f"the model gave the blank tool call id {tool_call_id!r}")
    if "/" in tool_call_id:
        raise RunnerContractError(f"the model gave tool call id {tool_call_id!r}, which holds '/'")
    if not is_encodable(tool_call_id):
        raise RunnerContractError(
            f"the model gave tool call id {tool_call_id!r}, which UTF-8 cannot carry"
        )
    if len(tool_call_id) > MAX_TOOL_CALL_ID_CHARACTERS:
        raise RunnerContractError(
            f"the model gave a tool call id of {len(tool_call_id)} characters; "
            f"at most {MAX_TOOL_CALL_ID_CHARACTERS} are allowed"
        )
