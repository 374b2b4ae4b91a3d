"""What a log record is about, as fields beside its text.

Names only, never what users store: ids, types, names of workers and streams.
"""

from __future__ import annotations

from typing import Final, TypedDict, Unpack

KEY: Final = "about"


class Names(TypedDict, total=False):
    """What a record can be about."""

    flow_id: str
    flow_type: str
    step: str
    worker: str
    stream: str
    call: str


def about(**names: Unpack[Names]) -> dict[str, Names]:
    """The `extra` of a log call."""
    return {KEY: names}
