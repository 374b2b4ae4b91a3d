"""What a handler is shown of a run."""

from __future__ import annotations

from operator import attrgetter

from dex_embedded._kernel.state import AttributeTable, FlowRun, Snapshot
from dex_embedded._kernel.values import AttributeVersion, ChannelMessage, Selection

_by_key = attrgetter("key")


def take_snapshot(run: FlowRun, selection: Selection) -> Snapshot:
    """The run as it is now, reduced to the selection. Cost goes by what is selected.

    Also for query RPCs, on running and closed runs alike.
    """
    return Snapshot(
        as_of=run.attribute_clock,
        attributes=select_attributes(run.attributes, selection),
        channel_sizes=tuple(sorted((name, len(queue)) for name, queue in run.channels.items())),
        messages=_messages(run, selection),
        selection=selection,
    )


def select_attributes(table: AttributeTable, selection: Selection) -> tuple[AttributeVersion, ...]:
    """The ordinary attributes and the selected map entries, by key, each key once."""
    shown = sorted(table.ordinary(), key=_by_key)
    if not selection.attribute_maps:
        return tuple(shown)
    whole = {name[:-1] for name in selection.attribute_maps if name.endswith("/")}
    for name in whole:
        shown.extend(table.entries(name))
    for key in selection.attribute_maps:
        # An exact entry of a map that is loaded as a whole is there already, and a repeated key
        # makes the SDK refuse the request.
        if not key.endswith("/") and key.partition("/")[0] not in whole:
            version = table.get(key)
            if version is not None:
                shown.append(version)
    shown.sort(key=_by_key)
    return tuple(shown)


def _messages(
    run: FlowRun, selection: Selection
) -> tuple[tuple[str, tuple[ChannelMessage, ...]], ...]:
    wanted = set(selection.channels)
    for name in selection.channel_maps:
        if name.endswith("/"):
            wanted.update(channel for channel in run.channels if channel.startswith(name))
        else:
            wanted.add(name)
    return tuple(
        (name, tuple(run.channels[name])) for name in sorted(wanted) if name in run.channels
    )
