"""`open_sessions`: what an application opens, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dex import AsyncWorker

from dex_agents import AgentSessionFlow, AgentSnapshot
from dex_agents.local import (
    EmbeddedEngineMissingError,
    EngineFailedError,
    EngineUnavailableError,
    SessionApp,
    WorkerStoppedError,
    open_sessions,
)
from dex_agents.testing import wait_for_agent_snapshot
from dex_agents_testkit import ScriptedRunner, parse_runner_script
from dex_embedded import open_engine

HELLO: dict[str, Any] = {"turns": [{"replies": [{"message": "hello"}]}]}


def greeter(flow_type: str = "Greeter") -> AgentSessionFlow:
    return AgentSessionFlow(ScriptedRunner(parse_runner_script(HELLO)), flow_type=flow_type)


def turn_done(snapshot: AgentSnapshot) -> AgentSnapshot | None:
    return snapshot if snapshot.state and snapshot.state.turn_count == 1 else None


async def answer_of(app: SessionApp, session_id: str, flow: str | None = None) -> str:
    sessions = app.sessions(flow)
    await sessions.start_session(session_id, "hi")
    snapshot = await wait_for_agent_snapshot(sessions, session_id, turn_done)
    return snapshot.messages[-1].text


@asynccontextmanager
async def engine_address(folder: Path) -> AsyncGenerator[str]:
    async with open_engine(folder) as engine:
        yield engine.address


def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_a_data_folder_is_enough_to_run_a_session(tmp_path: Path) -> None:
    async with open_sessions(greeter(), data_dir=tmp_path / "data") as app:
        assert await answer_of(app, "session-1") == "hello"


async def test_a_session_is_still_there_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    async with open_sessions(greeter(), data_dir=tmp_path) as app:
        await answer_of(app, "session-1")
    async with open_sessions(greeter(), data_dir=tmp_path) as app:
        snapshot = await app.sessions().get_agent_snapshot("session-1")

    assert [message.text for message in snapshot.messages] == ["hi", "hello"]


async def test_worker_and_client_may_be_opened_apart(tmp_path: Path) -> None:
    async with (
        engine_address(tmp_path) as address,
        open_sessions(greeter(), server_address=address, connect=False) as serving,
        open_sessions("Greeter", server_address=address, serve=False) as talking,
    ):
        assert await answer_of(talking, "session-1") == "hello"
        assert talking.worker is None
        with pytest.raises(RuntimeError, match="connect=False, so it has no client"):
            serving.sessions()


async def test_several_flows_share_one_worker(tmp_path: Path) -> None:
    flows = [greeter("First"), greeter("Second")]
    async with open_sessions(flows, data_dir=tmp_path) as app:
        assert await answer_of(app, "session-1", "First") == "hello"
        assert await answer_of(app, "session-2", "Second") == "hello"
        assert app.sessions(flows[1]) is not None
        with pytest.raises(ValueError, match="name one of them: First, Second"):
            app.sessions()
        with pytest.raises(ValueError, match="flow 'Third' was not given to open_sessions"):
            app.sessions("Third")
        with pytest.raises(ValueError, match="flow 'First' was not given to open_sessions"):
            app.sessions(greeter("First"))


@pytest.mark.parametrize(
    ("flows", "options", "message"),
    [
        ([], {"data_dir": "x"}, "at least one session flow"),
        (["F"], {}, "either data_dir .* or server_address"),
        (["F"], {"data_dir": "x", "server_address": "h:1"}, "not both"),
        (["F"], {"server_address": " "}, "server_address is blank"),
        (["F"], {"server_address": "h:1", "serve": False, "connect": False}, "nothing to open"),
        (["F"], {"server_address": "h:1"}, "flow 'F' is only named"),
    ],
)
async def test_arguments_that_contradict_each_other_open_nothing(
    flows: list[str],
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ValueError, match=message):
        async with open_sessions(flows, **options):
            pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("serve", [True, False])
async def test_an_engine_that_is_not_there_is_named(serve: bool) -> None:
    address = unused_address()

    with pytest.raises(EngineUnavailableError, match=f"no engine answers at {address}") as caught:
        async with open_sessions(greeter(), server_address=address, serve=serve, start_timeout=0.5):
            pass
    assert caught.value.server_address == address


async def test_an_engine_that_comes_a_moment_later_is_waited_for(tmp_path: Path) -> None:
    address = unused_address()

    async def open_late(opened: asyncio.Event) -> None:
        await asyncio.sleep(0.3)
        async with open_engine(tmp_path, port=int(address.rpartition(":")[2])):
            await opened.wait()

    opened = asyncio.Event()
    engine = asyncio.create_task(open_late(opened))
    async with open_sessions(greeter(), server_address=address) as app:
        assert await answer_of(app, "session-1") == "hello"
    opened.set()
    await engine


async def test_without_the_engine_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dex_embedded", None)

    with pytest.raises(EmbeddedEngineMissingError, match=r'pip install "dex-agents\[embedded\]"'):
        async with open_sessions(greeter(), data_dir=tmp_path):
            pass


async def test_a_worker_that_ends_early_ends_the_block_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()
    start = AsyncWorker.start

    async def start_and_break(worker: AsyncWorker) -> None:
        serving = asyncio.create_task(start(worker))
        await broken.wait()
        await worker.stop()
        await serving
        raise OSError("the network card melted")

    monkeypatch.setattr(AsyncWorker, "start", start_and_break)

    async def use() -> None:
        async with open_sessions(greeter(), data_dir=tmp_path):
            broken.set()
            await asyncio.sleep(600)

    with pytest.raises(WorkerStoppedError, match="the network card melted") as caught:
        await use()
    assert isinstance(caught.value.__cause__, OSError)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_engine_that_fails_ends_the_block_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dex_embedded._open import OpenEngine

    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def wait_failed(_: OpenEngine) -> BaseException:
        return await failure

    monkeypatch.setattr(OpenEngine, "wait_failed", wait_failed)

    async def use() -> None:
        async with open_sessions(greeter(), data_dir=tmp_path):
            failure.set_result(OSError("no space left"))
            await asyncio.sleep(600)

    with pytest.raises(EngineFailedError, match="no space left"):
        await use()


async def test_an_error_in_the_block_passes_and_everything_is_closed(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_sessions(greeter(), data_dir=tmp_path):
            raise KeyError("mine")
    async with open_sessions(greeter(), data_dir=tmp_path) as app:
        assert await answer_of(app, "session-1") == "hello"


async def test_a_cancelled_block_is_closed_and_stays_cancelled(tmp_path: Path) -> None:
    opened = asyncio.Event()

    async def use() -> None:
        async with open_sessions(greeter(), data_dir=tmp_path):
            opened.set()
            await asyncio.sleep(600)

    using = asyncio.create_task(use())
    await opened.wait()
    using.cancel()

    with pytest.raises(asyncio.CancelledError):
        await using
    async with open_sessions(greeter(), data_dir=tmp_path):
        pass


async def test_no_task_is_left_behind(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with open_sessions(greeter(), data_dir=tmp_path) as app:
        await answer_of(app, "session-1")

    assert asyncio.all_tasks() <= before


async def test_a_serving_program_ends_on_a_signal(tmp_path: Path) -> None:
    async with open_sessions(greeter(), data_dir=tmp_path) as app:
        serving = asyncio.create_task(app.serve_until_signal())
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, 10)


async def test_a_serving_program_may_end_with_its_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading))
    async with open_sessions(greeter(), data_dir=tmp_path) as app:
        serving = asyncio.create_task(app.serve_until_signal(or_end_of_input=True))
        await asyncio.sleep(0)
        assert not serving.done()
        os.close(writing)
        await asyncio.wait_for(serving, 10)
