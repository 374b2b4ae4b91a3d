"""One context manager that runs agent sessions in an application.

    async with open_sessions(flow, data_dir="sessions") as app:
        sessions = app.sessions()
        await sessions.start_session("session-1", "Find my open tickets")

With `data_dir` the embedded engine runs inside this process; with `server_address` the same code
uses an engine that runs elsewhere. Cache, worker and client are opened with the options a session
needs and closed in the right order.

A process that only talks to sessions, such as a web front end, needs neither the agent nor its
framework; the name of the flow type is enough:

    async with open_sessions("SupportAgent", server_address=address, serve=False) as app: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc
from dex import (
    AsyncClient,
    AsyncWorker,
    BlobCache,
    BlobCacheConfig,
    ClientOptions,
    Codec,
    CodecRegistry,
    Credential,
    DexServiceError,
    PullWorkerOptions,
    Registry,
    WorkerOptions,
    open_blob_cache,
)

from dex_agents.client import AgentSessionClient
from dex_agents.codecs import agent_codecs
from dex_agents.errors import DexAgentsError
from dex_agents.runner import AgentTurnContext, DeferredToolExecution
from dex_agents.session_flow import AgentSessionFlow

__all__ = [
    "EmbeddedEngineMissingError",
    "EngineFailedError",
    "EngineUnavailableError",
    "SessionApp",
    "WorkerStoppedError",
    "open_sessions",
]

DEFAULT_CONCURRENT_TASKS: Final = 32
DEFAULT_DRAIN_SECONDS: Final = 30.0
DEFAULT_START_SECONDS: Final = 30.0
CACHE_BYTES: Final = 64 * 1024 * 1024

T = TypeVar("T")
FlowOrName: TypeAlias = AgentSessionFlow | str

_RETRY_SECONDS: Final = 0.25
_LOG: Final = logging.getLogger(__name__)


class EmbeddedEngineMissingError(DexAgentsError):
    """A data folder was given, but the embedded engine is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "data_dir needs the embedded engine, which is not installed: "
            'pip install "dex-agents[embedded]", or pass server_address instead'
        )


class EngineUnavailableError(DexAgentsError):
    """No engine answered in time.

    Attributes:
        server_address: Where one was expected.
    """

    def __init__(self, server_address: str, detail: str) -> None:
        super().__init__(
            f"no engine answers at {server_address}: {detail}; "
            "check the address, or start one with `dex-embedded dev`"
        )
        self.server_address = server_address


class WorkerStoppedError(DexAgentsError):
    """The worker ended while the application was using it; its error is the cause."""


class EngineFailedError(DexAgentsError):
    """The embedded engine cannot go on, for example because the disk is full; see the cause.

    Nothing that was acknowledged is lost; start again when the reason is gone.
    """


@dataclass(frozen=True)
class SessionApp:
    """What `open_sessions` has opened.

    Attributes:
        server_address: `host:port` of the engine in use.
        registry: Registry of all flows.
        flows: The session flows, in the order given.
        worker: The running worker, or `None` when only a client was asked for.
    """

    server_address: str
    registry: Registry
    flows: tuple[AgentSessionFlow, ...]
    worker: AsyncWorker | None
    _client: AsyncClient | None

    @property
    def client(self) -> AsyncClient:
        """The SDK's client.

        Raises:
            RuntimeError: Only a worker was asked for.
        """
        if self._client is None:
            raise RuntimeError("open_sessions was called with connect=False, so it has no client")
        return self._client

    def sessions(self, flow: FlowOrName | None = None) -> AgentSessionClient:
        """Return the client for the sessions of one flow.

        Args:
            flow: One of the flows given to `open_sessions`, or its flow type; may be left out when
                there is one.

        Raises:
            ValueError: The flow is not one of those, or several were given and none is named.
            RuntimeError: Only a worker was asked for.
        """
        if flow is None:
            if len(self.flows) != 1:
                names = ", ".join(flow.get_flow_type() for flow in self.flows)
                raise ValueError(f"several flows are open, so name one of them: {names}")
            (flow,) = self.flows
        for known in self.flows:
            if flow is known or flow == known.get_flow_type():
                return AgentSessionClient(self.client, known)
        name = flow if isinstance(flow, str) else flow.get_flow_type()
        raise ValueError(f"flow {name!r} was not given to open_sessions")

    async def serve_until_signal(self, *, or_end_of_input: bool = False) -> None:
        """Return when the process gets SIGTERM or SIGINT; for programs that only serve.

        Args:
            or_end_of_input: Also return when standard input closes, so that the program does not
                outlive the one that started it and holds the other end.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop.set)
                stack.callback(loop.remove_signal_handler, number)
            if or_end_of_input:
                transport, _ = await loop.connect_read_pipe(lambda: _StopAtEnd(stop), sys.stdin)
                stack.callback(transport.close)
            await stop.wait()


class _StopAtEnd(asyncio.Protocol):
    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop.set()


@asynccontextmanager
async def open_sessions(
    flows: FlowOrName | Iterable[FlowOrName],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    server_address: str | None = None,
    serve: bool = True,
    connect: bool = True,
    max_concurrent_tasks: int = DEFAULT_CONCURRENT_TASKS,
    drain_timeout: float = DEFAULT_DRAIN_SECONDS,
    start_timeout: float = DEFAULT_START_SECONDS,
    cache_dir: str | os.PathLike[str] | None = None,
    codecs: Mapping[object, Codec[Any]] | None = None,
    credential: Credential | None = None,
) -> AsyncGenerator[SessionApp]:
    """Open everything that agent sessions need, and close it in order.

    Args:
        flows: The session flow, or several with different flow types. Without a worker the name of
            the flow type is enough.
        data_dir: Folder of an embedded engine in this process; created when missing. One process
            at a time may use it.
        server_address: `host:port` of an engine that runs elsewhere. Give this or `data_dir`.
        serve: Run a worker here. Without one, sessions only move while another process serves.
        connect: Open a client here.
        max_concurrent_tasks: Steps and calls that this worker handles at a time. Allow for the
            largest batch of tool calls of one model response, and one more.
        drain_timeout: Seconds that running Steps get to finish when the block ends. What takes
            longer is cancelled: a single-attempt tool call then ends with an unknown outcome, so
            make it at least as long as the longest tool call that must survive a deployment.
        start_timeout: Seconds to wait for the engine and for the worker to be registered.
        cache_dir: Folder for large values fetched from a server; a temporary one by default.
        codecs: Codecs for value types of your own, next to those of this package.
        credential: Supplies the bearer token where the engine asks for one.

    Yields:
        The open application.

    Raises:
        ValueError: The arguments contradict each other.
        EmbeddedEngineMissingError: `data_dir` is given and the engine is not installed.
        EngineUnavailableError: No engine answered within `start_timeout`.
        WorkerStoppedError: The worker ended by itself while the block was running.
        EngineFailedError: The embedded engine failed while the block was running.
    """
    named = (flows,) if isinstance(flows, AgentSessionFlow | str) else tuple(flows)
    _check_arguments(named, data_dir, server_address, serve, connect)
    given = tuple(_as_flow(flow) for flow in named)
    registry = Registry(
        list(given),
        codec_registry=CodecRegistry({**agent_codecs(), **(codecs or {})}),
        allow_async_handlers=True,
    )
    async with AsyncExitStack() as stack:
        address = server_address or await stack.enter_async_context(_embedded_engine(data_dir))
        cache = stack.enter_context(_open_cache(data_dir, cache_dir))
        worker_options = WorkerOptions(
            server_address=address,
            pull=PullWorkerOptions(
                max_concurrent_tasks=max_concurrent_tasks,
                stop_drain_timeout=timedelta(seconds=drain_timeout),
            ),
            credential=credential,
        )
        client = None
        if connect:
            client = await _open_client(registry, cache, worker_options)
            stack.push_async_callback(client.close)
        worker = None
        if serve:
            serving = _serve(registry, cache, worker_options, start_timeout)
            worker = await stack.enter_async_context(serving)
        elif client is not None:
            await _wait_for_engine(client, address, start_timeout)
        yield SessionApp(address, registry, given, worker, client)


def _check_arguments(
    flows: Sequence[FlowOrName],
    data_dir: str | os.PathLike[str] | None,
    server_address: str | None,
    serve: bool,
    connect: bool,
) -> None:
    if not flows:
        raise ValueError("open_sessions needs at least one session flow")
    if (data_dir is None) == (server_address is None):
        raise ValueError("give either data_dir (embedded engine) or server_address, not both")
    if server_address is not None and not server_address.strip():
        raise ValueError("server_address is blank; expected host:port")
    if not serve and not connect:
        raise ValueError("serve and connect are both False, so there is nothing to open")
    names = [flow for flow in flows if isinstance(flow, str)]
    if serve and names:
        raise ValueError(
            f"flow {names[0]!r} is only named, so it cannot be served here; "
            "pass the AgentSessionFlow, or serve=False"
        )


def _as_flow(flow: FlowOrName) -> AgentSessionFlow:
    if isinstance(flow, AgentSessionFlow):
        return flow
    return AgentSessionFlow(_AbsentRunner(), flow_type=flow)


class _AbsentRunner:
    """Stands in for the agent where sessions are only talked to."""

    def build_user_message(self, text: str) -> NoReturn:
        raise NotImplementedError("this process does not serve sessions")

    async def run_model_step(self, turn: AgentTurnContext) -> NoReturn:
        raise NotImplementedError("this process does not serve sessions")

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> NoReturn:
        raise NotImplementedError("this process does not serve sessions")


@asynccontextmanager
async def _embedded_engine(data_dir: str | os.PathLike[str] | None) -> AsyncGenerator[str]:
    try:
        from dex_embedded import open_engine
    except ModuleNotFoundError as error:
        if error.name != "dex_embedded":
            raise
        raise EmbeddedEngineMissingError from None
    async with open_engine(data_dir or ".") as engine:
        failing = asyncio.create_task(engine.wait_failed(), name="dex-agents engine watch")
        try:
            async with _stop_block_when_done(failing, _engine_failed):
                yield engine.address
        finally:
            failing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await failing


@contextmanager
def _open_cache(
    data_dir: str | os.PathLike[str] | None, cache_dir: str | os.PathLike[str] | None
) -> Generator[BlobCache]:
    """Open the cache of large values; a folder of its own unless the caller names one."""
    with contextlib.ExitStack() as stack:
        if cache_dir is not None:
            folder = Path(cache_dir)
        elif data_dir is not None:
            folder = Path(data_dir) / "cache"
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dex-agents-")))
        folder.mkdir(parents=True, exist_ok=True)
        cache = open_blob_cache(BlobCacheConfig(str(folder), CACHE_BYTES))
        stack.callback(cache.close)
        yield cache


async def _open_client(
    registry: Registry, cache: BlobCache, worker_options: WorkerOptions
) -> AsyncClient:
    # A session is sent to the target its client names, and only a worker knows the right one for
    # its options. So a worker that never starts is asked.
    worker = AsyncWorker(registry, cache, worker_options)
    try:
        target = worker.worker_target
    finally:
        await worker.close()
    return AsyncClient(
        registry,
        cache,
        ClientOptions(
            server_address=worker_options.server_address,
            worker_target=target,
            credential=worker_options.credential,
        ),
    )


async def _wait_for_engine(client: AsyncClient, address: str, start_timeout: float) -> None:
    deadline = time.monotonic() + start_timeout
    while True:
        try:
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                await client.health_check()
            return
        except (DexServiceError, TimeoutError) as error:
            if time.monotonic() >= deadline:
                raise EngineUnavailableError(address, str(error)) from error
        await asyncio.sleep(_RETRY_SECONDS)


@asynccontextmanager
async def _serve(
    registry: Registry, cache: BlobCache, options: WorkerOptions, start_timeout: float
) -> AsyncGenerator[AsyncWorker]:
    worker, serving = await _start_worker(registry, cache, options, start_timeout)
    try:
        async with _stop_block_when_done(serving, _worker_stopped):
            yield worker
    finally:
        await _close_worker(worker, serving)


async def _start_worker(
    registry: Registry, cache: BlobCache, options: WorkerOptions, start_timeout: float
) -> tuple[AsyncWorker, asyncio.Task[None]]:
    """Start a worker; try again while no engine listens, since a worker can start only once."""
    deadline = time.monotonic() + start_timeout
    warned = False
    while True:
        worker = AsyncWorker(registry, cache, options)
        serving = asyncio.create_task(worker.start(), name="dex-agents worker")
        try:
            await worker.wait_pull_registered(max(0.0, deadline - time.monotonic()))
            return worker, serving
        except BaseException as error:
            await _close_worker(worker, serving)
            if not _means_unavailable(error):
                raise
            if time.monotonic() >= deadline:
                raise EngineUnavailableError(options.server_address, _reason(error)) from error
        if not warned:
            _LOG.warning(
                "no engine answers at %s yet; trying for %g s",
                options.server_address,
                start_timeout,
            )
            warned = True
        await asyncio.sleep(_RETRY_SECONDS)


def _means_unavailable(error: BaseException) -> bool:
    """Tell a missing engine, which may still come, from an error that stays."""
    if isinstance(error, TimeoutError):
        return True
    cause = error.__cause__
    code = cause.code() if isinstance(cause, grpc.aio.AioRpcError) else None
    return code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the worker was not registered in time"
    cause = error.__cause__
    details = cause.details() if isinstance(cause, grpc.aio.AioRpcError) else None
    return details or str(error)


async def _close_worker(worker: AsyncWorker, serving: asyncio.Task[None]) -> None:
    try:
        await worker.close()
    finally:
        # Waited for, not awaited: its own end may look like a cancellation of this task, and a
        # start that failed was reported to the caller already.
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.exception()


@asynccontextmanager
async def _stop_block_when_done(
    watched: asyncio.Task[T], explain: Callable[[asyncio.Task[T]], DexAgentsError]
) -> AsyncGenerator[None]:
    """Cancel the running block when a task ends that must outlive it, and raise why.

    Without this a block that waits for a session would wait for ever.
    """
    owner = asyncio.current_task()
    assert owner is not None
    cancelled_before = owner.cancelling()
    stopped = False

    def on_done(_: asyncio.Task[T]) -> None:
        nonlocal stopped
        stopped = True
        owner.cancel()

    watched.add_done_callback(on_done)
    try:
        yield
    except asyncio.CancelledError:
        if stopped and owner.uncancel() <= cancelled_before:
            error = explain(watched)
            raise error from error.__cause__
        raise
    finally:
        watched.remove_done_callback(on_done)
    if stopped:
        # The block ended in the same instant; take back the cancellation that is on its way.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        owner.uncancel()
        error = explain(watched)
        raise error from error.__cause__


def _worker_stopped(serving: asyncio.Task[None]) -> WorkerStoppedError:
    error = None if serving.cancelled() else serving.exception()
    stopped = WorkerStoppedError(
        f"the worker stopped while it was in use: {error or 'it ended without an error'}"
    )
    stopped.__cause__ = error
    return stopped


def _engine_failed(failing: asyncio.Task[BaseException]) -> EngineFailedError:
    reason = failing.result()
    failed = EngineFailedError(f"the embedded engine had to stop: {reason}")
    failed.__cause__ = reason
    return failed
