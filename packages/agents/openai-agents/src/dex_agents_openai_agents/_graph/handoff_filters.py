"""Handoff filters are given the response with the handoff in one piece, as in a plain run.

Calls beside a handoff run as Steps of their own, and only the model Step after them carries the
handoff out. The framework then counts the response among what was there before, so a filter would
be shown its calls and their results in two different parts and could keep the ones without the
others.
"""

from __future__ import annotations

import functools
import inspect
from typing import cast

from agents import HandoffInputData, HandoffInputFilter

from dex_agents_openai_agents._tools.gate_scope import current_scope
from dex_agents_openai_agents._tools.resumed_response import item_key


def over_whole_response(input_filter: HandoffInputFilter) -> HandoffInputFilter:
    """Return a filter that is given the resumed response among the new items."""

    async def filtered(data: HandoffInputData) -> HandoffInputData:
        scope = current_scope()
        resumed = scope.resumed_response if scope.is_restoring else None
        before = data.pre_handoff_items
        keys = [item_key(item.raw_item) for item in before]
        start = len(before) if resumed is None else resumed.start_in(keys)
        given = data.clone(
            pre_handoff_items=before[:start], new_items=(*before[start:], *data.new_items)
        )
        result = input_filter(given)
        if inspect.isawaitable(result):
            result = await result
        if resumed is None or not isinstance(cast(object, result), HandoffInputData):
            return result
        moved = keys[start:]
        # The run has them already, so they go back to where they stand in it.
        kept = [item for item in result.new_items if item_key(item.raw_item) in moved]
        kept_keys = {item_key(item.raw_item) for item in kept}
        resumed.left_out += [key for key in moved if key not in kept_keys]
        return result.clone(
            pre_handoff_items=(
                result.pre_handoff_items
                if result.input_items is not None
                else (*result.pre_handoff_items, *kept)
            ),
            new_items=tuple(item for item in result.new_items if item not in kept),
        )

    return functools.wraps(input_filter)(filtered)
