"""What happens to work in the hands of a worker that is killed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from dex import FlowStatus
from dex.dexpb import dex_pb2 as pb
from engine_testing.process import engine_process
from engine_testing.till import TILL, worker_process
from engine_testing.world import World, open_world, until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with (
        engine_process(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path, [TILL]) as opened,
    ):
        yield opened


def reached(folder: Path, step: str, pid: int) -> bool:
    marker = folder / f"{step}.reached"
    return marker.exists() and marker.read_text() == str(pid)


async def test_a_killed_worker_costs_one_attempt_of_a_step_that_may_be_repeated(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "Charge.open").touch()
    async with worker_process(world.address, tmp_path) as first:
        await world.client.start_flow(TILL, "flow", str(tmp_path))
        await until(lambda: reached(tmp_path, "Fetch", first.pid))
        await first.kill()
    async with worker_process(world.address, tmp_path) as second:
        await until(lambda: reached(tmp_path, "Fetch", second.pid))
        (tmp_path / "Fetch.open").touch()
        result = await world.client.wait_for_flow("flow", timeout=timedelta(seconds=30))
    assert result.single_output(str) == "charged"
    assert (tmp_path / "charges").read_text() == "flow\n"
    reply = await world.stub.GetHistoryEvents(pb.GetHistoryEventsRequest(flow_id="flow"))
    fetch = reply.events[1].step_execute_completed.context
    assert (fetch.step_type, fetch.final_attempt) == ("Fetch", 2)
    reason = fetch.last_failure_info.details.dispatch_task_error_reason
    assert reason == pb.DISPATCH_TASK_ERROR_REASON_WORKER_DISCONNECTED


async def test_a_step_that_must_not_be_repeated_takes_its_failure_route_and_ran_once(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "Fetch.open").touch()
    async with worker_process(world.address, tmp_path) as first:
        await world.client.start_flow(TILL, "flow", str(tmp_path))
        await until(lambda: reached(tmp_path, "Charge", first.pid))
        await first.kill()
    (tmp_path / "Charge.open").touch()
    async with worker_process(world.address, tmp_path):
        result = await world.client.wait_for_flow("flow", timeout=timedelta(seconds=30))
    assert result.status is FlowStatus.COMPLETED
    assert result.single_output(str) == "outcome unknown"
    assert (tmp_path / "charges").read_text() == "flow\n"


async def test_engine_and_worker_killed_together_never_run_a_single_attempt_twice(
    tmp_path: Path,
) -> None:
    (tmp_path / "Fetch.open").touch()
    async with (
        engine_process(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path, [TILL]) as world,
        worker_process(engine.address, tmp_path) as worker,
    ):
        await world.client.start_flow(TILL, "flow", str(tmp_path))
        await until(lambda: reached(tmp_path, "Charge", worker.pid))
        await engine.kill()
        await worker.kill()
    (tmp_path / "Charge.open").touch()
    async with (
        engine_process(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path, [TILL]) as world,
        worker_process(engine.address, tmp_path),
    ):
        result = await world.client.wait_for_flow("flow", timeout=timedelta(seconds=30))
    assert result.single_output(str) == "outcome unknown"
    assert (tmp_path / "charges").read_text() == "flow\n"
