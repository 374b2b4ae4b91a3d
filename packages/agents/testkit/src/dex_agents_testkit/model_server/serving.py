"""Running the scripted model server inside a test, or for as long as a process lives."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dex_agents_testkit.model_server.app import HANG_UP, ScriptedModelApp
from dex_agents_testkit.model_server.recording import RecordedRequest, RequestLog
from dex_agents_testkit.model_server.script import ModelScript, parse_model_script

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RunningModelServer:
    """A model server that accepts requests."""

    host: str
    port: int
    _log: RequestLog

    @property
    def base_url(self) -> str:
        """The `base_url` for an OpenAI client."""
        return f"http://{self.host}:{self.port}/v1"

    @property
    def client_env(self) -> dict[str, str]:
        """Environment in which the `openai` package talks to this server, and to nobody else."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": "scripted"}

    @property
    def requests(self) -> tuple[RecordedRequest, ...]:
        """Every request received so far, oldest first."""
        return self._log.requests


@contextlib.asynccontextmanager
async def serve_model_script(
    script: ModelScript | Mapping[str, Any],
    *,
    host: str = LOOPBACK,
    port: int = 0,
    requests_log: str | Path | None = None,
    gates_dir: str | Path | None = None,
) -> AsyncGenerator[RunningModelServer]:
    """Serve a script on this event loop until the block ends.

    Args:
        script: A loaded script, or the script as plain data.
        host: A loopback address; the scripted model never listens elsewhere.
        port: The port, or 0 for a free one.
        requests_log: A file that gets one JSON line per request.
        gates_dir: Where `hold` faults leave and await their marks.

    Raises:
        ScriptError: The script is not usable.
        ValueError: `host` is not a loopback address.
        OSError: The port is taken.
    """
    checked = script if isinstance(script, ModelScript) else parse_model_script(script)
    log = RequestLog(requests_log)
    app = ScriptedModelApp(checked, log, None if gates_dir is None else Path(gates_dir))
    listening = _bind(host, port)
    server = _QuietServer(
        uvicorn.Config(
            app.build(),
            http=_HangUpProtocol,
            log_config=None,
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await server.wait_ready(serving)
        yield RunningModelServer(host, int(listening.getsockname()[1]), log)
    finally:
        server.should_exit = True
        await serving
        listening.close()


class _HangUpProtocol(H11Protocol):
    """HTTP whose application may end a connection that it has not answered on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        app: ASGIApp = self.app

        async def with_hang_up(scope: Scope, receive: Receive, send: Send) -> None:
            extensions = {**scope.get("extensions", {}), HANG_UP: self.transport.abort}
            await app({**scope, "extensions": extensions}, receive, send)

        self.app = with_hang_up


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers, which belong to whoever owns the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()

    async def wait_ready(self, serving: asyncio.Task[None]) -> None:
        """Return once requests are accepted; raise what ended the server before that."""
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({ready, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if serving.done():
            await serving
            raise RuntimeError("the model server ended before it accepted requests")


def _bind(host: str, port: int) -> socket.socket:
    try:
        address = ipaddress.ip_address(LOOPBACK if host == "localhost" else host)
    except ValueError:
        raise ValueError(f"host {host!r} is not an IP address or localhost") from None
    if not address.is_loopback:
        raise ValueError(f"host {host!r} is not a loopback address: the scripted model is local")
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((str(address), port))
    except OSError as error:
        listening.close()
        raise OSError(
            error.errno, f"port {port} on {host} cannot be used: {error.strerror}"
        ) from error
    return listening
