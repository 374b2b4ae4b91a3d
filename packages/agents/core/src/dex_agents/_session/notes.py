"""The note a failed turn leaves, kept to a length that fits the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dex_agents._session.text import bound_characters
from dex_agents.runner import build_turn_failure_note
from dex_agents.values import AgentToolCall

#: Characters of arguments and outputs in one note at most.
MAX_NOTE_CHARACTERS: Final = 100_000
#: Calls that one note lists; older ones are counted.
MAX_NOTE_CALLS: Final = 200
_MAX_NAME_CHARACTERS: Final = 200


def build_bounded_note(records: Sequence[AgentToolCall], missing: int = 0) -> str | None:
    """Return the note about the calls that ran, or `None` when none did.

    Args:
        records: Final records of the failed turn.
        missing: Number of further calls whose record could not be loaded.
    """
    if not records and not missing:
        return None
    listed = sorted(records, key=lambda record: record.deferral_order)[-MAX_NOTE_CALLS:]
    missing += len(records) - len(listed)
    each = MAX_NOTE_CHARACTERS // (4 * max(1, len(listed)))
    note = build_turn_failure_note(_shortened(record, each) for record in listed)
    if missing:
        lines = note.split("\n")
        lines.insert(1, f"- {missing} further tool calls whose records are not at hand")
        note = "\n".join(lines)
    return note


def _shortened(record: AgentToolCall, each: int) -> AgentToolCall:
    def cut(text: str | None) -> str | None:
        return None if text is None else bound_characters(text, each)

    return replace(
        record,
        tool_name=bound_characters(record.tool_name, min(each, _MAX_NAME_CHARACTERS)),
        arguments=bound_characters(record.arguments, each),
        output=cut(record.output),
        error=cut(record.error),
        rejection_message=cut(record.rejection_message),
    )
