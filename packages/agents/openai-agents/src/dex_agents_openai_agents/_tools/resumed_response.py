"""The response whose calls a model Step resolves, and how its items are found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

#: Kind, id and call id.
ItemKey = tuple[object, object, object]


@dataclass
class ResumedResponse:
    """The response whose calls a model Step resolves.

    Attributes:
        keys: Its items.
        left_out: Those that a filter took out of the run.
    """

    keys: Sequence[ItemKey]
    left_out: list[ItemKey] = field(default_factory=list[ItemKey])

    def start_in(self, found: Sequence[ItemKey]) -> int:
        """Return where the response begins among items; behind them if it is not there."""
        size = len(self.keys)
        for start in reversed(range(len(found) - size + 1)):
            if size and list(found[start : start + size]) == list(self.keys):
                return start
        return len(found)

    def places_left_out(self, found: Sequence[ItemKey]) -> tuple[int, ...]:
        """Return where the items that a filter took out stand among all items of the run."""
        start = self.start_in(found)
        return tuple(
            place for place, key in enumerate(found) if place >= start and key in self.left_out
        )


def item_key(raw_item: Any) -> ItemKey:
    """Return what tells an item from the others of a turn."""
    if isinstance(raw_item, Mapping):
        item = cast(Mapping[str, object], raw_item)
        return item.get("type"), item.get("id"), item.get("call_id")
    kind, own_id, call_id = (getattr(raw_item, name, None) for name in ("type", "id", "call_id"))
    return kind, own_id, call_id
