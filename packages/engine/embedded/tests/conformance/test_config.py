"""Changing a running flow's settings."""

from __future__ import annotations

import pytest
from dex import (
    ActiveStepSearchMode,
    FlowConfig,
    FlowNotActiveOrNotFoundError,
)
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import Script
from engine_testing.world import World

from .test_identity import parked

behaviour = pytest.mark.behaviour


@behaviour("config.update")
async def test_an_update_of_the_config_keeps_what_it_does_not_mention(bare_world: World) -> None:
    script = parked()
    await bare_world.start(script)
    config = FlowConfig(active_step_search_mode=ActiveStepSearchMode.DISABLED)
    await bare_world.client.update_flow_config(script.flow_id, config)
    state = await bare_world.stub.GetFlowState(pb.GetFlowStateRequest(flow_id=script.flow_id))
    assert state.flow_config.active_step_search_mode == pb.ACTIVE_STEP_SEARCH_MODE_DISABLED
    assert state.flow_config.worker_target.is_pull_mode


@behaviour("config.continue-as-new")
async def test_continue_as_new_is_accepted_and_changes_nothing_visible(
    bare_world: World,
) -> None:
    script = parked()
    run_id = await bare_world.start(script)
    await bare_world.client.trigger_continue_as_new(script.flow_id)
    assert (await bare_world.client.describe_flow(script.flow_id)).flow_type == "Probe"
    assert run_id
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await bare_world.client.trigger_continue_as_new(Script().flow_id)
