"""Everything one integration test needs, behind one context manager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from dex import Codec, DexServiceError

from dex_agents.client import AgentSessionClient
from dex_agents.errors import SessionNotFoundError
from dex_agents.local import SessionApp, open_sessions
from dex_agents.session_flow import AgentSessionFlow
from dex_agents.testing._engine import EngineProcess, create_engine
from dex_agents.testing._history import StepHistoryEntry, read_step_history
from dex_agents.testing._processes import StartProcess, start_process
from dex_agents.testing._waiting import DEFAULT_INTERVAL, DEFAULT_TIMEOUT, wait_until
from dex_agents.testing._worker import WorkerProcess
from dex_agents.values import AgentSnapshot

T = TypeVar("T")

_SNAPSHOT_SECONDS: Final = 5.0
_OUTPUT_TAIL: Final = 1500
_SHOWN_WORKERS: Final = 2


class AgentTestStack:
    """A private engine, a client in this process, and worker processes on demand.

    When the block ends with an error, the end of what the engine and the newest workers printed is
    added to it.

    Args:
        state_dir: Folder for data and output, such as pytest's `tmp_path`.
        flows: The session flows, built just like the worker builds them.
        worker_module: What `start_worker` runs: a module name for `python -m`, or a `.py` file.
        worker_cwd: Working directory of the workers.
        worker_env: Variables added to the environment of the workers.
        engine_env: Variables added to the environment of the engine.
        codecs: Codecs for value types of your own.
        start: How engine and workers are started.
    """

    def __init__(
        self,
        state_dir: str | Path,
        flows: Iterable[AgentSessionFlow],
        worker_module: str,
        *,
        worker_cwd: str | Path | None = None,
        worker_env: Mapping[str, str] | None = None,
        engine_env: Mapping[str, str] | None = None,
        codecs: Mapping[object, Codec[Any]] | None = None,
        start: StartProcess = start_process,
    ) -> None:
        self.state_dir = Path(state_dir)
        self.engine: EngineProcess = create_engine(
            self.state_dir / "engine", self.state_dir, engine_env, start
        )
        self._start_process = start
        self._flows = tuple(flows)
        self._worker_module = worker_module
        self._worker_cwd = worker_cwd
        self._worker_env = dict(worker_env or {})
        self._codecs = codecs
        self._workers: list[WorkerProcess] = []
        self._stack = AsyncExitStack()
        self._app: SessionApp | None = None

    async def __aenter__(self) -> Self:
        """Start the engine and open the client."""
        try:
            await self.engine.start()
            self._stack.push_async_callback(self._stop_processes)
            app = open_sessions(
                self._flows,
                server_address=self.engine.address,
                serve=False,
                codecs=self._codecs,
            )
            self._app = await self._stack.enter_async_context(app)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client and end every process."""
        if error is not None:
            self._add_output(error)
        await self._stack.aclose()

    @property
    def server_address(self) -> str:
        """`host:port` of the engine."""
        return self.engine.address

    @property
    def workers(self) -> tuple[WorkerProcess, ...]:
        """Every worker started so far, oldest first."""
        return tuple(self._workers)

    def sessions(self, flow: AgentSessionFlow | None = None) -> AgentSessionClient:
        """Return a client for the sessions of one flow; it may be left out when there is one."""
        if self._app is None:
            raise RuntimeError("AgentTestStack is used outside its `async with` block")
        return self._app.sessions(flow)

    async def start_worker(self, env: Mapping[str, str] | None = None) -> WorkerProcess:
        """Start a worker process and wait until it is registered.

        Args:
            env: Variables added to the environment of this worker only.

        Raises:
            ChildProcessError: It ended or was not registered in time.
        """
        worker = WorkerProcess(
            f"worker-{len(self._workers) + 1}",
            self._worker_module,
            server_address=self.engine.address,
            state_dir=self.state_dir,
            cwd=self._worker_cwd,
            env={**self._worker_env, **(env or {})},
            start=self._start_process,
        )
        self._workers.append(worker)
        await worker.wait_until_ready()
        return worker

    async def read_step_history(self, flow_id: str) -> list[StepHistoryEntry]:
        """List the ended Steps of a session, oldest first."""
        return await read_step_history(self.engine.address, flow_id)

    async def _stop_processes(self) -> None:
        for worker in self._workers:
            worker.kill()
        await self.engine.stop()

    def _add_output(self, error: BaseException) -> None:
        processes = [*self._workers[-_SHOWN_WORKERS:], self.engine.process]
        for process in processes:
            tail = process.output()[-_OUTPUT_TAIL:].strip()
            if tail:
                error.add_note(f"--- {process.name} (code {process.returncode}) ---\n{tail}")


async def wait_for_agent_snapshot(
    sessions: AgentSessionClient,
    session_id: str,
    probe: Callable[[AgentSnapshot], T | None],
    *,
    description: str = "a matching snapshot",
    timeout: float = DEFAULT_TIMEOUT,
    interval: float = DEFAULT_INTERVAL,
) -> T:
    """Read snapshots of a session until `probe` returns something true, and return that.

    A session that does not exist yet, an engine that is down and a worker that is missing mean
    "not yet", so the wait may go over a kill and a restart.

    Args:
        sessions: Client of the session.
        session_id: The session.
        probe: Looks at one snapshot.
        description: What is awaited, for the message of a timeout.
        timeout: Seconds until the wait fails.
        interval: Seconds between two snapshots.

    Raises:
        WaitTimeoutError: Nothing true came in time.
    """

    async def look() -> T | None:
        async with asyncio.timeout(_SNAPSHOT_SECONDS):
            snapshot = await sessions.get_agent_snapshot(session_id)
        return probe(snapshot)

    return await wait_until(
        f"{description} of session {session_id!r}",
        look,
        timeout=timeout,
        interval=interval,
        ignore=(TimeoutError, DexServiceError, SessionNotFoundError),
    )
