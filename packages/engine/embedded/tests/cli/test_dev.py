"""The `dev` command: readiness, errors, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sqlite3
from pathlib import Path

import pytest
from dex import AsyncContext, DexServiceError, StepDecision, graceful_complete
from engine_testing.forking import start_command
from engine_testing.probe import PROBE, Script
from engine_testing.process import engine_process
from engine_testing.world import open_world

from dex_embedded.cli.bounds import bounds_of


async def run_cli(*args: str) -> tuple[int, str, str]:
    """Runs the command to its end; returns exit code, stdout and stderr."""
    process = await start_command(args)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
            code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return code, out.decode(), err.decode()


def dev(folder: Path, *more: str) -> tuple[str, ...]:
    return ("dev", "--data-dir", str(folder), "--port", "0", *more)


def one_line(text: str) -> str:
    assert text.count("\n") == 1, text
    return text


async def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, _, err = await run_cli("dev", "--data-dir", str(tmp_path), "--port", port)
    assert code == 1
    assert port in one_line(err)


async def test_a_data_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "dex.sqlite3"
    file.write_text("not a database, but somebody's notes " * 100)
    before = file.read_bytes()
    code, _, err = await run_cli(*dev(tmp_path))
    assert code == 1
    assert "dex.sqlite3" in one_line(err)
    assert file.read_bytes() == before


async def test_a_database_from_a_newer_engine_is_refused_with_both_versions(
    tmp_path: Path,
) -> None:
    async with engine_process(tmp_path):
        pass
    database = sqlite3.connect(tmp_path / "dex.sqlite3")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    database.execute(f"PRAGMA user_version = {version + 7}")
    database.commit()
    database.close()
    code, _, err = await run_cli(*dev(tmp_path))
    assert code == 1
    assert str(version + 7) in one_line(err)


async def test_a_data_dir_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.touch()
    code, _, err = await run_cli(*dev(file))
    assert code == 1
    assert "data" in one_line(err)


async def test_a_second_engine_on_the_same_file_is_refused(tmp_path: Path) -> None:
    async with engine_process(tmp_path):
        code, _, err = await run_cli(*dev(tmp_path))
    assert code == 1
    assert "dex.sqlite3" in one_line(err)


async def test_an_address_that_others_can_reach_is_refused(tmp_path: Path) -> None:
    code, _, err = await run_cli(*dev(tmp_path, "--host", "0.0.0.0"))
    assert code == 1
    assert "loopback" in one_line(err)


async def test_a_token_file_is_asked_for_and_taken_by_the_flow_commands(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("the-token-of-this-test\nanother\n")
    log: list[str] = []
    args = ("--token-file", str(tokens))
    async with engine_process(tmp_path / "data", args=args, log=log) as engine:
        at = ("--server", engine.address)
        code, _, err = await run_cli("flow", "list", *at)
        assert code == 1
        assert "access token" in one_line(err)
        code, out, err = await run_cli("flow", "list", *at, *args, "--json")
        assert (code, err) == (0, "")
        assert out == '{"flows": []}\n'
    assert "the-token-of-this-test" not in "".join(log)


async def test_a_token_file_that_everybody_can_read_is_a_clear_error(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("the-token-of-this-test\n")
    tokens.chmod(0o644)
    code, _, err = await run_cli(*dev(tmp_path / "data"), "--token-file", str(tokens))
    assert code == 1
    assert "chmod o-rwx" in one_line(err)
    assert "the-token-of-this-test" not in err


async def test_wrong_usage_has_its_own_exit_code(tmp_path: Path) -> None:
    code, _, _ = await run_cli("dev", "--port", "many")
    assert code == 2


async def test_a_bound_of_the_command_is_one_of_the_engine(tmp_path: Path) -> None:
    args = ("--bound", "queued_tasks=2", "--bound", "long_polls=1_000")
    async with (
        engine_process(tmp_path / "data", args=args) as engine,
        open_world(engine.address, tmp_path) as world,
    ):
        for _ in range(2):
            await world.start(Script())
        with pytest.raises(DexServiceError, match="overloaded: 2 tasks"):
            await world.start(Script())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["queue=2"], "'queue=2' names no bound; the bounds and their defaults: pending_calls="),
        (["queued_tasks"], "'queued_tasks' needs a whole number, as queued_tasks=1000"),
        (["queued_tasks=many"], "'queued_tasks=many' needs a whole number"),
        (["queued_tasks=0"], "bound queued_tasks must be at least 1"),
        (["long_polls=1", "long_polls=2"], "long_polls is given twice"),
    ],
)
def test_a_bound_that_cannot_be_meant_is_named(given: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        bounds_of(given)


async def test_a_wrong_bound_is_wrong_usage_and_makes_no_data_file(tmp_path: Path) -> None:
    code, _, err = await run_cli(*dev(tmp_path / "data"), "--bound", "queue=2")
    assert code == 2
    assert "--bound" in err
    assert "names no bound" in err
    assert not (tmp_path / "data").exists()


async def test_sigterm_lets_a_running_step_finish(tmp_path: Path) -> None:
    running = asyncio.Event()
    release = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        running.set()
        await release.wait()
        return graceful_complete(given)

    script = Script(execute={"Start": start})
    async with (
        engine_process(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as world,
        world.worker(),
    ):
        await world.start(script, "kept")
        await running.wait()
        waiting = asyncio.create_task(world.result(script))
        stopping = asyncio.create_task(engine.terminate())
        with pytest.raises(DexServiceError) as ended:
            await waiting
        assert ended.value.code.name == "UNAVAILABLE"
        release.set()
        assert await stopping == 0
        async with engine_process(tmp_path / "data"):
            pass
    async with (
        engine_process(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as world,
    ):
        assert (await world.result(script)).single_output(str) == "kept"
    assert len(script.calls) == 1
    assert PROBE is not None


async def test_sigterm_ends_within_its_bound_although_a_step_goes_on(tmp_path: Path) -> None:
    running = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        if not running.is_set():
            running.set()
            await asyncio.sleep(600)
        return graceful_complete("the second attempt")

    script = Script(execute={"Start": start})
    async with (
        engine_process(tmp_path / "data", args=("--drain-seconds", "0.2")) as engine,
        open_world(engine.address, tmp_path) as world,
        world.worker(),
    ):
        await world.start(script)
        await running.wait()
        assert await engine.terminate() == 0
    async with (
        engine_process(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as world,
        world.worker(),
    ):
        assert (await world.result(script)).single_output(str) == "the second attempt"


async def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    running = asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        running.set()
        await asyncio.sleep(600)
        return graceful_complete()

    script = Script(execute={"Start": start})
    async with (
        engine_process(tmp_path / "data") as engine,
        open_world(engine.address, tmp_path) as world,
        world.worker(),
    ):
        await world.start(script)
        await running.wait()
        waiting = asyncio.create_task(world.result(script))
        os.kill(engine.pid, signal.SIGTERM)
        with pytest.raises(DexServiceError):
            await waiting
        os.kill(engine.pid, signal.SIGTERM)
        assert await engine.wait_gone(within=2) != 0
