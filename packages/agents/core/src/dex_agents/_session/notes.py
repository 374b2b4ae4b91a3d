"""The note a failed turn leaves, kept to a length that fits the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dex_agents._session.text import bound_characters
from dex_agents.runner import build_turn_failure_note
from dex_agents.values import AgentToolCall

#: Characters of a whole note at most.
MAX_NOTE_CHARACTERS: Final = 200_000
_FEWEST_CHARACTERS_PER_FIELD: Final = 200


def build_bounded_note(records: Sequence[AgentToolCall], missing: int = 0) -> str | None:
    """Return the note about the calls that ran, or `None` when none did.

    Args:
        records: Final records of the failed turn.
        missing: Number of further calls whose record could not be loaded.
    """
    if not records and not missing:
        return None
    each = max(_FEWEST_CHARACTERS_PER_FIELD, MAX_NOTE_CHARACTERS // (3 * max(1, len(records))))
    note = build_turn_failure_note(
        replace(
            record,
            arguments=bound_characters(record.arguments, each),
            output=None if record.output is None else bound_characters(record.output, each),
        )
        for record in records
    )
    if missing:
        lines = note.split("\n")
        lines.insert(1, f"- {missing} further tool calls whose records are not at hand")
        note = "\n".join(lines)
    return note
