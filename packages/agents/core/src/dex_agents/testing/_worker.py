"""The worker side: what runs inside a worker process of a test, and how a test starts one."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dex import Codec

from dex_agents.local import DEFAULT_CONCURRENT_TASKS, open_sessions
from dex_agents.session_flow import AgentSessionFlow
from dex_agents.testing._processes import ChildProcess, StartProcess, start_process
from dex_agents.testing._waiting import WaitTimeoutError, wait_until

SERVER_VARIABLE: Final = "DEX_AGENTS_TEST_SERVER"
READY_VARIABLE: Final = "DEX_AGENTS_TEST_READY_FILE"
_START_SECONDS: Final = 60.0


def run_agent_worker(
    flows: Iterable[AgentSessionFlow],
    *,
    max_concurrent_tasks: int = DEFAULT_CONCURRENT_TASKS,
    codecs: Mapping[object, Codec[Any]] | None = None,
) -> None:
    """Serve flows in a worker process that `AgentTestStack.start_worker` has started.

    Call it from the main block of the worker module. It returns on SIGTERM, or when the test
    process is gone.

    Args:
        flows: The flows to serve.
        max_concurrent_tasks: See `open_sessions`.
        codecs: See `open_sessions`.
    """
    server_address = os.environ.get(SERVER_VARIABLE)
    ready_file = os.environ.get(READY_VARIABLE)
    if not server_address or not ready_file:
        raise RuntimeError(
            f"{SERVER_VARIABLE} and {READY_VARIABLE} are not set: run_agent_worker is for worker "
            "processes that AgentTestStack starts"
        )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    async def serve() -> None:
        async with open_sessions(
            flows,
            server_address=server_address,
            connect=False,
            max_concurrent_tasks=max_concurrent_tasks,
            drain_timeout=5,
            codecs=codecs,
        ) as app:
            _write_ready_file(ready_file)
            await app.serve_until_signal(or_end_of_input=True)

    asyncio.run(serve())


def _write_ready_file(path: str) -> None:
    Path(path).write_text(str(os.getpid()), encoding="utf-8")


class WorkerProcess(ChildProcess):
    """A worker process of a test; `kill` ends it with SIGKILL at once."""

    def __init__(
        self,
        name: str,
        module: str,
        *,
        server_address: str,
        state_dir: Path,
        cwd: str | Path | None,
        env: Mapping[str, str],
        start: StartProcess = start_process,
    ) -> None:
        self._ready_file = state_dir / f"{name}.ready"
        self._ready_file.unlink(missing_ok=True)
        run = [module] if module.endswith(".py") else ["-m", module]
        super().__init__(
            name,
            [sys.executable, *run],
            log_path=state_dir / f"{name}.log",
            cwd=cwd,
            env={
                **os.environ,
                **env,
                SERVER_VARIABLE: server_address,
                READY_VARIABLE: str(self._ready_file.absolute()),
            },
            start=start,
        )

    async def wait_until_ready(self) -> None:
        """Wait until the worker is registered with the engine.

        Raises:
            ChildProcessError: It ended or was not registered in time.
        """

        def ready() -> bool:
            self.require_running()
            return self._ready_file.exists()

        try:
            await wait_until(f"{self.name} to register", ready, timeout=_START_SECONDS)
        except WaitTimeoutError as error:
            raise self.failure("was not registered in time") from error
