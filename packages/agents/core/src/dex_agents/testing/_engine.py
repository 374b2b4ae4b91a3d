"""A private engine in a process of its own: the embedded one, or the one that `DEXCLI` names.

Both are started on an explicit port, so that an engine can be killed and come back at the same
address with the same data.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dex_agents.local import EmbeddedEngineMissingError
from dex_agents.testing._processes import ChildProcess, StartProcess, start_process
from dex_agents.testing._waiting import WaitTimeoutError, wait_until

# Below the range that the system hands out for outgoing connections: a client that tries to reach
# an engine which is down could otherwise be given the engine's own port and connect to itself.
_PORTS: Final = range(20_000, 30_000)
_START_SECONDS: Final = 60.0
_PORT_ATTEMPTS: Final = 5
_DEXCLI_READY: Final = re.compile(r"^Dex Server:\s*(\S+)", re.MULTILINE)


class EngineProcess(ABC):
    """An engine that belongs to one test.

    Args:
        data_dir: Its data, kept over restarts.
        log_dir: Folder of its output.
        env: Variables added to its environment.
        start: How its process is started.

    Attributes:
        has_fault_places: Whether it reads the `DEX_EMBEDDED_FAULT` variables.
    """

    has_fault_places: bool = False

    def __init__(
        self,
        data_dir: Path,
        log_dir: Path,
        env: Mapping[str, str] | None = None,
        start: StartProcess = start_process,
    ) -> None:
        self.data_dir = data_dir
        self._start_process = start
        self._log_dir = log_dir
        self._env = dict(env or {})
        self._port = 0
        self._starts = 0
        self._process: ChildProcess | None = None

    @property
    def address(self) -> str:
        """`host:port`, the same for the whole life of the test."""
        return f"127.0.0.1:{self._port}"

    @property
    def process(self) -> ChildProcess:
        """The process of the latest start.

        Raises:
            RuntimeError: It was never started.
        """
        if self._process is None:
            raise RuntimeError("the engine was not started")
        return self._process

    async def start(self, env: Mapping[str, str] | None = None) -> None:
        """Start the engine and wait until it serves.

        Args:
            env: Variables added to its environment for this start only.

        Raises:
            ChildProcessError: It ended or did not become ready.
        """
        if self._process is not None and self._process.is_running:
            raise RuntimeError("the engine is running; kill or stop it first")
        fixed = self._port != 0
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = self._port if fixed else _free_port()
            process = self._launch(port, {**os.environ, **self._env, **(env or {})})
            try:
                await self._wait_ready(process)
            except Exception:
                process.kill()
                # Another test may have taken the port between the choice and the start.
                if fixed or attempt == _PORT_ATTEMPTS or "in use" not in process.output():
                    raise
                continue
            self._port, self._process = port, process
            return

    def kill(self) -> None:
        """End the engine with SIGKILL."""
        self.process.kill()

    async def stop(self) -> None:
        """End the engine in good order."""
        await self.process.stop()

    async def restart(self, env: Mapping[str, str] | None = None) -> None:
        """Start the engine again after `kill` or `stop`, at the same address with the same data."""
        await self.start(env)

    async def wait_until_dead(self, timeout: float = _START_SECONDS) -> int:
        """Wait until the engine has ended by itself, such as at a fault place; return its code."""
        return await self.process.wait(timeout)

    def _launch(self, port: int, env: Mapping[str, str]) -> ChildProcess:
        self._starts += 1
        log_path = self._log_dir / f"engine-{self._starts}.log"
        name = f"engine (start {self._starts})"
        return self._create(name, port, log_path, env)

    async def _wait_ready(self, process: ChildProcess) -> None:
        def ready() -> bool:
            process.require_running()
            return self._is_ready(process.output())

        try:
            await wait_until(f"{process.name} to serve", ready, timeout=_START_SECONDS)
        except WaitTimeoutError as error:
            raise process.failure("did not become ready") from error

    @abstractmethod
    def _create(
        self, name: str, port: int, log_path: Path, env: Mapping[str, str]
    ) -> ChildProcess: ...

    @abstractmethod
    def _is_ready(self, output: str) -> bool: ...


class EmbeddedEngineProcess(EngineProcess):
    """The embedded engine, run by its command."""

    has_fault_places = True

    def _create(self, name: str, port: int, log_path: Path, env: Mapping[str, str]) -> ChildProcess:
        if importlib.util.find_spec("dex_embedded") is None:
            raise EmbeddedEngineMissingError
        command = [sys.executable, "-m", "dex_agents.testing._engine_child", "dev"]
        command += ["--data-dir", str(self.data_dir), "--port", str(port), "--json"]
        return ChildProcess(name, command, log_path=log_path, env=env, start=self._start_process)

    def _is_ready(self, output: str) -> bool:
        for line in output.splitlines():
            try:
                return "address" in json.loads(line)
            except ValueError:
                continue
        return False


class DexcliEngineProcess(EngineProcess):
    """The engine of a `dexcli` binary, run by `dexcli dev --engine zd`.

    Args:
        dexcli: The binary. `dex-server-zd` is expected beside it, or where
            `DEX_SERVER_ZD_BINARY` says.
        data_dir: Its data; made the home directory of the engine, which keeps its files there.
        log_dir: Folder of its output.
        env: Variables added to its environment.
        start: How its process is started.
    """

    def __init__(
        self,
        dexcli: Path,
        data_dir: Path,
        log_dir: Path,
        env: Mapping[str, str] | None = None,
        start: StartProcess = start_process,
    ) -> None:
        super().__init__(data_dir, log_dir, env, start)
        self._dexcli = dexcli
        server = os.environ.get("DEX_SERVER_ZD_BINARY") or str(dexcli.with_name("dex-server-zd"))
        for binary in (dexcli, Path(server)):
            if not binary.exists():
                raise FileNotFoundError(
                    f"{binary} does not exist; DEXCLI must name the dexcli binary and have "
                    "dex-server-zd beside it, or DEX_SERVER_ZD_BINARY must name that"
                )
        self._env["DEX_SERVER_ZD_BINARY"] = server

    def _create(self, name: str, port: int, log_path: Path, env: Mapping[str, str]) -> ChildProcess:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [str(self._dexcli), "dev", "--engine", "zd", "--open=false"]
        command += ["--dex-port", str(port), "--web-port", str(_free_port())]
        return ChildProcess(
            name,
            command,
            log_path=log_path,
            env={**env, "HOME": str(self.data_dir)},
            start=self._start_process,
        )

    def _is_ready(self, output: str) -> bool:
        return _DEXCLI_READY.search(output) is not None


def create_engine(
    data_dir: Path,
    log_dir: Path,
    env: Mapping[str, str] | None = None,
    start: StartProcess = start_process,
) -> EngineProcess:
    """Choose the engine: that of `DEXCLI` when the variable is set, else the embedded one."""
    dexcli = os.environ.get("DEXCLI", "").strip()
    if dexcli:
        return DexcliEngineProcess(Path(dexcli).absolute(), data_dir, log_dir, env, start)
    return EmbeddedEngineProcess(data_dir, log_dir, env, start)


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port found between {_PORTS.start} and {_PORTS.stop - 1}")
