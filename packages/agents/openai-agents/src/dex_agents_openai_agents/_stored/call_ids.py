"""Tool call ids: the form the session accepts, and ids that stay unique over many turns.

Providers may reuse an id in a later turn. The framework then merges both calls in the model's
input: the older call disappears and the conversation is reordered. So an id that comes up again is
renamed wherever it stands in *older* items; the newest use keeps the id the provider knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

#: Longest call id that providers accept.
MAX_CALL_ID_LENGTH: Final = 64


def to_session_call_id(call_id: str) -> str:
    """Return the id under which the session keeps a call: a session id contains no `/`."""
    return call_id.replace("~", "~0").replace("/", "~1")


def to_model_call_id(session_call_id: str) -> str:
    """Undo `to_session_call_id`."""
    return session_call_id.replace("~1", "/").replace("~0", "~")


def call_ids_of(items: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the call ids that occur in input items."""
    return {call_id for item in items if isinstance(call_id := item.get("call_id"), str)}


def with_unique_call_ids(
    turns: Sequence[tuple[str, Sequence[dict[str, Any]]]], taken: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the items of all turns in order, with every call id used by one turn only.

    Args:
        turns: Turn id and items of each turn, oldest first. Given items are not changed.
        taken: Ids of the running turn, which keep their form.
    """
    used = set(taken)
    rendered: list[Sequence[dict[str, Any]]] = []
    for turn_id, items in reversed(turns):
        own = call_ids_of(items)
        renames: dict[str, str] = {}
        for call_id in sorted(own & used):
            # A new id may collide with one that the same turn has, or was just given.
            renames[call_id] = _renamed(call_id, turn_id, used | own | set(renames.values()))
        used |= own | set(renames.values())
        rendered.append([_rename(item, renames) for item in items] if renames else items)
    return [item for items in reversed(rendered) for item in items]


def _renamed(call_id: str, turn_id: str, used: set[str]) -> str:
    # Depends on the turn alone, so a later request repeats it and the provider's cache still hits.
    candidate = f"{call_id}_{turn_id}"
    salt = 0
    while candidate in used or len(candidate) > MAX_CALL_ID_LENGTH:
        digest = hashlib.sha256(f"{turn_id}/{call_id}/{salt}".encode("utf-8", "surrogatepass"))
        candidate = f"call_{digest.hexdigest()[:24]}"
        salt += 1
    return candidate


def _rename(item: dict[str, Any], renames: Mapping[str, str]) -> dict[str, Any]:
    changed = item
    call_id = item.get("call_id")
    if isinstance(call_id, str) and call_id in renames:
        changed = {**changed, "call_id": renames[call_id]}
    caller = item.get("caller")
    if isinstance(caller, Mapping):
        # A call made by generated code points to the program's own call.
        caller = cast(Mapping[str, Any], caller)
        caller_id = caller.get("caller_id")
        if isinstance(caller_id, str) and caller_id in renames:
            changed = {**changed, "caller": {**caller, "caller_id": renames[caller_id]}}
    return changed
