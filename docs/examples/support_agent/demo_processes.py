"""The processes of the demo: engine, model and workers, each of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from dex_agents.testing import ChildProcess, EngineProcess, create_engine, wait_until

HERE = Path(__file__).resolve().parent
START_SECONDS = 120.0


@dataclass(frozen=True)
class ModelChoice:
    """Which model answers.

    Attributes:
        name: Name of the model; `None` for the SDK's default.
        script: Script of the scripted model; `None` for the real provider.
    """

    name: str | None
    script: Path | None


class DemoProcesses:
    """Starts what the demo needs and ends all of it, whatever happens.

    Args:
        data_dir: Folder of everything that is kept between two runs.
        model: Which model answers.
    """

    def __init__(self, data_dir: Path, model: ModelChoice) -> None:
        self._logs = data_dir / "logs"
        self._model = model
        self._model_environment: dict[str, str] = {}
        self._stack = AsyncExitStack()
        self._workers = 0
        self._clients: list[ChildProcess] = []
        self.requests_log = data_dir / "model-requests.jsonl"
        self.shop_dir = data_dir / "shop"
        self.engine: EngineProcess = create_engine(data_dir / "engine", self._logs)
        self.model_server: ChildProcess | None = None

    async def __aenter__(self) -> DemoProcesses:
        """Start the engine and, unless a real one is wanted, the scripted model."""
        self._logs.mkdir(parents=True, exist_ok=True)
        for old in self._logs.glob("*.log"):
            old.unlink()
        try:
            starting = [self._start_engine()]
            if self._model.script is not None:
                starting.append(self._start_model_server(self._model.script))
            await asyncio.gather(*starting)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every process, the engine last."""
        await asyncio.gather(*(process.stop(timeout=3.0) for process in self._clients))
        await self._stack.aclose()

    async def start_worker(self, read_seconds: float) -> ChildProcess:
        """Start a worker and wait until it serves.

        Args:
            read_seconds: How long the shop lets it wait for an order.
        """
        self._workers += 1
        command = [sys.executable, str(HERE / "support_worker.py")]
        command += ["--server", self.engine.address, "--stop-with-stdin"]
        if self._model.name is not None:
            command += ["--model", self._model.name]
        environment = {
            "SUPPORT_SHOP_DIR": str(self.shop_dir),
            "SUPPORT_SHOP_READ_SECONDS": str(read_seconds),
        }
        worker = self._start(f"worker-{self._workers}", command, environment)
        await self._wait_for_line(worker, "worker ready")
        return worker

    async def _start_engine(self) -> None:
        await self.engine.start()
        self._stack.push_async_callback(self.engine.stop)

    async def _start_model_server(self, script: Path) -> None:
        command = [sys.executable, "-m", "dex_agents_testkit.model_server"]
        command += ["--script", str(script), "--requests-log", str(self.requests_log)]
        command += ["--port", "0", "--json", "--stop-with-stdin"]
        server = self._start("model", command, {})
        line = await self._wait_for_line(server, "base_url")
        self.model_server = server
        self._model_environment = {
            "OPENAI_BASE_URL": json.loads(line)["base_url"],
            # The scripted model asks for no key, but the client wants one.
            "OPENAI_API_KEY": "none-needed",
            # There is nobody to send traces to.
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }

    def _start(self, name: str, command: list[str], environment: Mapping[str, str]) -> ChildProcess:
        log_path = self._logs / f"{name}.log"
        process = ChildProcess(
            name,
            command,
            log_path=log_path,
            env={**os.environ, **self._model_environment, **environment},
        )
        self._clients.append(process)
        return process

    async def _wait_for_line(self, process: ChildProcess, text: str) -> str:
        def line() -> str | None:
            process.require_running()
            return next((line for line in process.output().splitlines() if text in line), None)

        return await wait_until(
            f"{process.name} to be ready", line, timeout=START_SECONDS, interval=0.02
        )
