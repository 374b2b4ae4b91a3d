"""What happens when engine and worker are killed together."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from engine_testing.process import engine_process
from engine_testing.till import TILL, reached, worker_process
from engine_testing.world import open_world, until


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
