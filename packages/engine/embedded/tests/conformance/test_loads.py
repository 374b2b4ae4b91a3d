"""What a Step method finds loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dex import (
    AsyncContext,
    AttributeMapNotLoadedError,
    ChannelMessagesNotLoadedError,
    FlowStatus,
    StepDecision,
    StepMovement,
    StepOptions,
    go_to,
    go_to_many,
    graceful_complete,
)
from engine_testing.probe import BOXES, INBOX, ITEMS, NOTE, OTHER, Alpha, Loader, Script
from engine_testing.world import World

behaviour = pytest.mark.behaviour


async def look_with(
    world: World, options: StepOptions, look: Callable[[AsyncContext], object]
) -> object:
    """What a Step with these options sees of a flow that has a bit of everything."""
    seen: list[object] = []

    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "n")
        ITEMS.set(context, "a b", "one")
        ITEMS.set(context, "c", "two")
        INBOX.publish(context, "m")
        BOXES.publish(context, "x y", "b")
        return go_to_many(StepMovement.of(Alpha, "", options=options))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        seen.append(look(context))
        return graceful_complete()

    script = Script(execute={"Start": start, "Alpha": alpha})
    await world.start(script)
    result = await world.result(script)
    assert result.status is FlowStatus.COMPLETED, result.error_message
    return seen[0]


@behaviour("loads.attributes")
async def test_ordinary_attributes_always_arrive_and_map_entries_only_when_loaded(
    world: World,
) -> None:
    def look(context: AsyncContext) -> object:
        with pytest.raises(AttributeMapNotLoadedError):
            ITEMS.get(context, "c")
        return NOTE.get(context)

    assert await look_with(world, StepOptions(), look) == "n"

    def look_at_all(context: AsyncContext) -> object:
        return {key: ITEMS.get(context, key) for key in ITEMS.get_all_instance_keys(context)}

    whole = StepOptions(execute_load_attribute_maps=(ITEMS,))
    assert await look_with(world, whole, look_at_all) == {"a b": "one", "c": "two"}


@behaviour("loads.exact-instance")
async def test_loading_one_entry_of_a_map_brings_no_other(world: World) -> None:
    def look(context: AsyncContext) -> object:
        with pytest.raises(AttributeMapNotLoadedError):
            ITEMS.get(context, "a b")
        with pytest.raises(AttributeMapNotLoadedError):
            ITEMS.get_all_instance_keys(context)
        return ITEMS.get(context, "c"), ITEMS.get(context, "none")

    loads = (ITEMS.load("c"), ITEMS.load("none"))
    options = StepOptions(execute_load_attribute_map_instances=loads)
    assert await look_with(world, options, look) == ("two", None)


@behaviour("loads.channel-sizes")
async def test_sizes_of_channels_arrive_although_nothing_is_loaded(world: World) -> None:
    def look(context: AsyncContext) -> object:
        with pytest.raises(ChannelMessagesNotLoadedError):
            INBOX.pending_messages(context)
        keys = BOXES.get_all_instance_keys(context)
        return INBOX.size(context), OTHER.size(context), keys, BOXES.size(context, "x y")

    assert await look_with(world, StepOptions(), look) == (1, 0, ("x y",), 1)


@behaviour("loads.empty-channel")
async def test_a_loaded_channel_without_messages_is_an_empty_list(world: World) -> None:
    def look(context: AsyncContext) -> object:
        pending = [message.value for message in INBOX.pending_messages(context)]
        return pending, list(OTHER.pending_messages(context))

    options = StepOptions(execute_load_channels=(INBOX, OTHER))
    assert await look_with(world, options, look) == (["m"], [])


@behaviour("loads.options-of-a-movement")
async def test_the_options_of_a_movement_replace_the_registered_loads_for_it_alone(
    world: World,
) -> None:
    loaded: list[bool] = []

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to_many(StepMovement.of(Loader, "again", options=StepOptions()))

    async def load(context: AsyncContext, given: str) -> StepDecision:
        try:
            ITEMS.get_all_instance_keys(context)
        except AttributeMapNotLoadedError:
            loaded.append(False)
        else:
            loaded.append(True)
        return go_to(Loader, "") if given else graceful_complete()

    script = Script(execute={"Start": start, "Loader": load})
    await world.start(script)
    assert (await world.result(script)).status is FlowStatus.COMPLETED
    assert loaded == [False, True]
