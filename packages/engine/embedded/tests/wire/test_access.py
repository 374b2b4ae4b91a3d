"""Access tokens, through the unchanged SDK."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from dex import AsyncContext, DexServiceError, FileCredential, StepDecision, graceful_complete
from dex.dexpb import dex_pb2 as pb
from engine_testing.probe import Script
from engine_testing.world import World, open_world, running_worker, until
from google.protobuf.empty_pb2 import Empty

from dex_embedded import NotLoopbackError, OpenEngine, TokenFileError, open_engine
from dex_embedded._wire.server import REFUSED, SERVED

FIRST = "first-token-0123456789"
SECOND = "second-token-0123456789"
WRONG = "wrong-token-0123456789"


class Held:
    """A credential whose token a test changes."""

    def __init__(self, token: str) -> None:
        self.held = token

    def token(self) -> str:
        return self.held


class Tokens:
    """The token file of a test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch(0o600)

    def hold(self, *lines: str) -> None:
        self.path.write_text("".join(f"{line}\n" for line in lines))

    def show_to_everybody(self) -> None:
        self.path.chmod(0o644)

    def move(self, source: str, target: str) -> None:
        (self.path.parent / source).rename(self.path.parent / target)


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    made = Tokens(tmp_path / "tokens")
    made.hold(FIRST)
    return made


@asynccontextmanager
async def guarded(folder: Path, tokens: Tokens) -> AsyncGenerator[OpenEngine]:
    async with open_engine(folder / "data", token_file=tokens.path, drain_seconds=0.5) as engine:
        yield engine


async def call(world: World, name: str, request: bytes, *authorization: str) -> grpc.StatusCode:
    """The status of one raw call."""
    async with grpc.aio.insecure_channel(world.address) as channel:
        method = channel.unary_unary(f"/dex.FlowService/{name}")
        sent = grpc.aio.Metadata(*(("authorization", value) for value in authorization))
        try:
            await method(request, metadata=sent)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_a_client_and_a_worker_with_the_token_are_served(
    tmp_path: Path, tokens: Tokens
) -> None:
    script = Script()
    credential = FileCredential(tokens.path)
    async with (
        guarded(tmp_path, tokens) as engine,
        open_world(engine.address, tmp_path, credential=credential) as world,
        world.worker(credential=credential),
    ):
        await world.start(script, "given")
        assert (await world.result(script)).single_output(str) == "given"
        await world.client.health_check()


@pytest.mark.parametrize("credential", [None, Held(WRONG)], ids=["none", "wrong"])
async def test_a_client_without_the_token_is_told_so_and_changes_nothing(
    tmp_path: Path, tokens: Tokens, credential: Held | None
) -> None:
    script = Script()
    async with (
        guarded(tmp_path, tokens) as engine,
        open_world(engine.address, tmp_path, credential=credential) as world,
        open_world(engine.address, tmp_path / "good", credential=Held(FIRST)) as good,
    ):
        with pytest.raises(DexServiceError, match="access token") as refused:
            await world.start(script)
        assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert WRONG not in str(refused.value)
        with pytest.raises(DexServiceError) as missing:
            await good.client.describe_flow(script.flow_id)
        assert missing.value.code is grpc.StatusCode.NOT_FOUND


async def test_every_call_of_the_service_is_guarded(tmp_path: Path, tokens: Tokens) -> None:
    async with guarded(tmp_path, tokens) as engine, open_world(engine.address, tmp_path) as world:
        for name in (*SERVED, *REFUSED):
            assert await call(world, name, b"") is grpc.StatusCode.UNAUTHENTICATED, name
            wrong = await call(world, name, b"", f"Bearer {WRONG}")
            assert wrong is grpc.StatusCode.UNAUTHENTICATED, name


async def test_a_call_with_two_authorizations_is_refused(tmp_path: Path, tokens: Tokens) -> None:
    good = f"Bearer {FIRST}"
    async with guarded(tmp_path, tokens) as engine, open_world(engine.address, tmp_path) as world:
        assert await call(world, "HealthCheck", b"", good) is grpc.StatusCode.OK
        twice = await call(world, "HealthCheck", b"", good, good)
        assert twice is grpc.StatusCode.UNAUTHENTICATED


async def test_a_caller_without_a_token_is_refused_before_its_message_is_read(
    tmp_path: Path, tokens: Tokens
) -> None:
    async with (
        guarded(tmp_path, tokens) as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        # A message that never comes: only its call has been opened.
        opened: Any = channel.stream_unary("/dex.FlowService/StartFlow")()
        assert await opened.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_worker_with_a_wrong_token_cannot_start(tmp_path: Path, tokens: Tokens) -> None:
    async with (
        guarded(tmp_path, tokens) as engine,
        open_world(engine.address, tmp_path, credential=Held(FIRST)) as world,
    ):
        with pytest.raises(RuntimeError, match="access token"):
            async with running_worker(engine.address, world.cache, credential=Held(WRONG)):
                pass


async def test_a_worker_stream_needs_the_token_too(tmp_path: Path, tokens: Tokens) -> None:
    register = pb.PollWorkerTaskRequest(
        register=pb.PollWorkerTaskRegister(
            queue="Probe", app_worker_id="someone", flow_types=["Probe"]
        )
    )
    async with (
        guarded(tmp_path, tokens) as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        poll = channel.stream_stream(
            "/dex.WorkerTaskService/PollWorkerTask",
            request_serializer=pb.PollWorkerTaskRequest.SerializeToString,
        )
        for sent in ((), (("authorization", f"Bearer {WRONG}"),)):
            stream: Any = poll(metadata=grpc.aio.Metadata(*sent))
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.write(register)
            assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_tokens_are_rotated_without_a_gap_and_the_old_one_ends(
    tmp_path: Path, tokens: Tokens
) -> None:
    held = Held(FIRST)
    script, later = Script(), Script()
    running, release = asyncio.Event(), asyncio.Event()

    async def start(context: AsyncContext, given: str) -> StepDecision:
        running.set()
        await release.wait()
        return graceful_complete(given)

    script.execute["Start"] = start
    async with (
        guarded(tmp_path, tokens) as engine,
        open_world(engine.address, tmp_path, credential=held) as world,
        world.worker(credential=held),
    ):
        await world.start(script, "in hand")
        await running.wait()
        opened_with_first = _streams(engine)
        tokens.hold(FIRST, SECOND)
        await world.client.health_check()
        held.held = SECOND
        await world.client.health_check()
        tokens.hold(SECOND)
        assert await call(world, "HealthCheck", b"", f"Bearer {FIRST}") is (
            grpc.StatusCode.UNAUTHENTICATED
        )
        in_use = [stream for stream in opened_with_first if stream.offer is not None]
        await until(lambda: set(_streams(engine)) & set(opened_with_first) == set(in_use))
        assert len(in_use) == 1
        release.set()
        assert (await world.result(script)).single_output(str) == "in hand"
        await until(lambda: not set(_streams(engine)) & set(opened_with_first))
        await world.start(later, "after")
        assert (await world.result(later)).single_output(str) == "after"
    assert len(script.calls) == 1


async def test_idle_streams_of_a_token_that_was_taken_out_are_ended_and_not_let_in_again(
    tmp_path: Path, tokens: Tokens
) -> None:
    script = Script()
    async with (
        guarded(tmp_path, tokens) as engine,
        open_world(engine.address, tmp_path, credential=Held(SECOND)) as world,
        running_worker(engine.address, world.cache, credential=Held(FIRST)),
    ):
        tokens.hold(SECOND)
        await until(lambda: not _streams(engine))
        await world.start(script, "for another")
        async with world.worker(credential=Held(SECOND)):
            assert (await world.result(script)).single_output(str) == "for another"


async def test_a_worker_that_is_never_idle_gets_no_task_after_its_token_was_taken_out(
    tmp_path: Path, tokens: Tokens
) -> None:
    tokens.hold(FIRST, SECOND)
    release = asyncio.Event()
    running: list[str] = []

    async def start(context: AsyncContext, given: str) -> StepDecision:
        running.append(context.flow_id)
        await release.wait()
        return graceful_complete("done")

    old, new = Held(FIRST), Held(SECOND)
    scripts = [Script(execute={"Start": start}) for _ in range(6)]
    async with (
        guarded(tmp_path, tokens) as engine,
        open_world(engine.address, tmp_path, credential=new) as world,
        world.worker(credential=old, max_tasks=2, reserved_rpcs=0),
    ):
        for script in scripts:
            await world.start(script)
        await until(lambda: len(running) == 2)
        tokens.hold(SECOND)
        await until(lambda: all(stream.is_leaving for stream in _streams(engine)))
        release.set()
        # What it had in its hands is finished, and nothing else was put there.
        for flow_id in running:
            result = await world.client.wait_for_flow(flow_id, timeout=timedelta(seconds=20))
            assert result.single_output(str) == "done"
        await until(lambda: not _streams(engine))
        assert len(running) == 2
        async with world.worker(credential=new):
            for script in scripts:
                assert (await world.result(script)).single_output(str) == "done"


async def test_a_token_file_that_cannot_be_read_refuses_for_the_moment_only(
    tmp_path: Path, tokens: Tokens
) -> None:
    async with guarded(tmp_path, tokens) as engine, open_world(engine.address, tmp_path) as world:
        good = f"Bearer {FIRST}"
        tokens.move("tokens", "aside")
        assert await call(world, "HealthCheck", b"", good) is grpc.StatusCode.UNAVAILABLE
        assert await call(world, "HealthCheck", b"") is grpc.StatusCode.UNAUTHENTICATED
        tokens.move("aside", "tokens")
        assert await call(world, "HealthCheck", b"", good) is grpc.StatusCode.OK


async def test_an_address_others_can_reach_needs_a_token_file(
    tmp_path: Path, tokens: Tokens
) -> None:
    with pytest.raises(NotLoopbackError, match="token file"):
        async with open_engine(tmp_path / "data", host="0.0.0.0"):
            pass
    assert not (tmp_path / "data").exists()
    async with open_engine(tmp_path / "data", host="0.0.0.0", token_file=tokens.path) as engine:
        reached = f"127.0.0.1:{engine.address.rpartition(':')[2]}"
        async with open_world(reached, tmp_path, credential=Held(FIRST)) as world:
            await world.client.health_check()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await world.stub.HealthCheck(Empty())
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_token_file_that_cannot_be_used_is_refused_before_anything_is_made(
    tmp_path: Path, tokens: Tokens
) -> None:
    tokens.show_to_everybody()
    with pytest.raises(TokenFileError, match="chmod"):
        async with open_engine(tmp_path / "data", token_file=tokens.path):
            pass
    assert not (tmp_path / "data").exists()


async def test_no_log_line_and_no_error_ever_holds_a_token(
    tmp_path: Path, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    async with (
        guarded(tmp_path, tokens) as engine,
        open_world(engine.address, tmp_path) as world,
        running_worker(engine.address, world.cache, credential=Held(FIRST)),
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        for name in (*SERVED, "NoSuchCall"):
            method = channel.unary_unary(f"/dex.FlowService/{name}")
            for token in (FIRST, WRONG):
                sent = grpc.aio.Metadata(("authorization", f"Bearer {token}"))
                try:
                    await method(b"\xff", metadata=sent)
                except grpc.aio.AioRpcError as error:
                    said += [str(error.details()), repr(error.trailing_metadata())]
        tokens.hold(f"{SECOND} {SECOND}")
        said.append(str(await call(world, "HealthCheck", b"", f"Bearer {FIRST}")))
        tokens.hold(SECOND)
        await until(lambda: not _streams(engine))
    everything = caplog.text + "".join(said)
    assert "token" in everything
    for token in (FIRST, SECOND, WRONG):
        assert token not in everything


def _streams(engine: OpenEngine) -> list[Any]:
    return list(engine._engine.workers._dispatcher.table.streams())
