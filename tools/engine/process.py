"""Starts an engine as a process of its own, waits until it is ready, and stops it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.engine.probe import dev_flags
from tools.engine.resolve import Choice
from tools.errors import ToolError

_READY_SECONDS = 60.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.05
_SERVER_LINE = re.compile(r"^Dex Server:\s+(\S+)\s*$", re.MULTILINE)
_LOG_TAIL = 2000


@dataclass(frozen=True)
class RunningEngine:
    """An engine that answers at an address."""

    address: str
    process: subprocess.Popen[bytes]

    def ended(self) -> bool:
        """Say whether its process has ended."""
        return self.process.poll() is not None


@contextmanager
def running(
    choice: Choice, embedded: Path, data: Path | None = None, port: int | None = None
) -> Generator[RunningEngine]:
    """Run the chosen engine for the time of the context.

    Args:
        choice: Which engine.
        embedded: The `dex-embedded` program.
        data: Folder for what the engine stores; a temporary one where None.
        port: Port on loopback; a free one where None.

    Raises:
        ToolError: it does not get ready; the message holds the end of its log.
    """
    with contextlib.ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dex-engine-")))
        data.mkdir(parents=True, exist_ok=True)
        read_address: Callable[[str], str | None]
        if choice.program is None:
            line = [str(embedded), "dev", "--data-dir", str(data), "--port", str(port or 0)]
            line.append("--json")
            read_address = _address_in_json
        else:
            line = dev_command(choice.program, dev_flags(choice.program), data, port)
            read_address = _address_in_text
        log = data / "engine.log"
        with log.open("wb") as output:
            # Below HOME the program keeps what no option moves; the user's own stays untouched.
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "HOME": str(data)},
                start_new_session=True,
            )
        try:
            yield RunningEngine(_wait_until_ready(process, log, read_address), process)
        finally:
            _stop(process)


def dev_command(program: Path, flags: frozenset[str], data: Path, port: int | None) -> list[str]:
    """Return the command that starts a development server, using only options it lists."""
    wanted = {
        "--bind-address": "127.0.0.1",
        "--open": "false",
        "--engine": "zd",
        "--sqlite-db-filename": str(data / "dex.sqlite.db"),
        "--blob-store-dir": str(data / "dex.blobs"),
        "--server-log-folder": str(data / "logs"),
    }
    if port is not None:
        if "--dex-port" not in flags:
            raise ToolError(f"`{program} dev` takes no port; leave the port out")
        wanted["--dex-port"] = str(port)
    options = [f"{name}={value}" for name, value in wanted.items() if name in flags]
    return [str(program), "dev", *options]


def _address_in_text(log: str) -> str | None:
    match = _SERVER_LINE.search(log)
    return match.group(1) if match else None


def _address_in_json(log: str) -> str | None:
    for line in log.splitlines(keepends=True):
        if line.startswith("{") and line.endswith("\n"):
            try:
                return str(json.loads(line)["address"])
            except (ValueError, KeyError):
                continue
    return None


def _wait_until_ready(
    process: subprocess.Popen[bytes], log: Path, read_address: Callable[[str], str | None]
) -> str:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        # The code before the log: a program that ends has written all it will.
        code = process.poll()
        text = log.read_text(encoding="utf-8", errors="replace")
        address = read_address(text)
        if code is not None:
            raise ToolError(
                f"the engine ended with code {code} before it was ready:\n{_tail(text)}"
            )
        if address is not None:
            return address
        if time.monotonic() > deadline:
            raise ToolError(f"the engine was not ready in {_READY_SECONDS:.0f} s:\n{_tail(text)}")
        time.sleep(_POLL_SECONDS)


def _tail(text: str) -> str:
    return text[-_LOG_TAIL:].strip() or "(it wrote nothing)"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine, and what it started where it leaves that behind."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads its own group
    process.wait()
