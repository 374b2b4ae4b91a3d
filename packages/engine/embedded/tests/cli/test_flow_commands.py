"""The `flow` commands against a running engine."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from dex import (
    AsyncContext,
    RetryPolicy,
    StepDecision,
    StepMovement,
    StepOptions,
    go_to_many,
    graceful_complete,
)
from engine_testing.probe import NOTE, STATUS, Alpha, Script, Waiter
from engine_testing.process import engine_process
from engine_testing.world import World, open_world, until

from .test_dev import run_cli


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with (
        engine_process(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as opened,
        opened.worker(),
    ):
        yield opened


async def two_attempts(world: World) -> Script:
    """A flow that is over, one of whose Steps needed a second attempt."""

    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "ü")
        STATUS.set(context, "busy")
        retry = RetryPolicy(timedelta(seconds=1), maximum_attempts=2)
        return go_to_many(StepMovement.of(Alpha, "x", options=StepOptions(execute_retry=retry)))

    async def alpha(context: AsyncContext, given: str) -> StepDecision:
        if context.attempt == 1:
            raise RuntimeError("the first try failed")
        return graceful_complete({"total": 3})

    script = Script(execute={"Start": start, "Alpha": alpha})
    await world.start(script, "in")
    await world.result(script)
    return script


async def test_history_shows_steps_with_attempts(world: World) -> None:
    script = await two_attempts(world)
    code, out, err = await run_cli("flow", "history", script.flow_id, "--server", world.address)
    assert code == 0, err
    row = next(line for line in out.splitlines() if "Alpha-1" in line)
    assert "StepExecuteCompleted" in row
    assert " 2 " in row
    assert "the first try failed" in row


async def test_history_as_json_has_natural_values(world: World) -> None:
    script = await two_attempts(world)
    code, out, err = await run_cli(
        "flow", "history", script.flow_id, "--server", world.address, "--json"
    )
    assert code == 0, err
    document = json.loads(out)
    assert document["flowId"] == script.flow_id
    events = document["events"]
    assert [event["type"] for event in events] == [
        "FlowStartedOrContinued",
        "StepExecuteCompleted",
        "StepExecuteCompleted",
        "FlowClosed",
    ]
    assert [event["eventId"] for event in events] == ["1", "2", "3", "4"]
    assert events[0]["payload"]["initialStart"]["stepInput"] == "in"
    writes = events[1]["payload"]["output"]["upsertAttributes"]
    assert {write["key"]: write["value"] for write in writes} == {"Note": "ü", "Status": "busy"}
    assert events[2]["payload"]["context"]["finalAttempt"] == 2
    assert events[3]["payload"]["results"][0]["completedStepOutput"] == {"total": 3}
    assert events[3]["payload"]["flowStatus"] == "FLOW_STATUS_COMPLETED"


async def test_list_shows_flows_and_their_indexed_attributes(world: World) -> None:
    script = await two_attempts(world)
    code, out, err = await run_cli("flow", "list", "--server", world.address)
    assert code == 0, err
    row = next(line for line in out.splitlines() if script.flow_id in line)
    assert "COMPLETED" in row
    assert 'ProbeStatus="busy"' in row
    code, out, err = await run_cli(
        "flow", "list", "--server", world.address, "--json", "--query", "ProbeStatus = 'busy'"
    )
    assert [flow["flowId"] for flow in json.loads(out)["flows"]] == [script.flow_id]


async def test_show_state_and_stop_work_on_a_waiting_flow(world: World) -> None:
    async def start(context: AsyncContext, given: str) -> StepDecision:
        NOTE.set(context, "seen")
        return go_to_many(StepMovement.of(Waiter, ""))

    script = Script(execute={"Start": start})
    await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    server = ("--server", world.address)
    code, out, err = await run_cli("flow", "state", script.flow_id, *server)
    assert code == 0, err
    assert json.loads(out)["attributes"] == [{"key": "Note", "value": "seen"}]
    code, _, err = await run_cli("flow", "stop", script.flow_id, *server, "--reason", "enough")
    assert code == 0, err
    code, out, err = await run_cli("flow", "show", script.flow_id, *server, "--json")
    assert json.loads(out)["flowStatus"] == "FLOW_STATUS_CANCELED"


async def test_an_unknown_flow_and_an_absent_engine_are_clear_errors(world: World) -> None:
    code, _, err = await run_cli("flow", "history", "nobody", "--server", world.address)
    assert code == 1
    assert "nobody" in err
    code, _, err = await run_cli("flow", "list", "--server", "127.0.0.1:1")
    assert code == 1
    assert "no engine answers" in err
