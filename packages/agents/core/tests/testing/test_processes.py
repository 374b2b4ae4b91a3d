from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from dex_agents.testing import ChildProcess, ChildProcessError, wait_until


def start(tmp_path: Path, program: str) -> ChildProcess:
    command = [sys.executable, "-u", "-c", program]
    return ChildProcess("child", command, log_path=tmp_path / "child.log")


async def output_of(child: ChildProcess, text: str) -> None:
    await wait_until(f"output {text!r}", lambda: text in child.output())


async def test_a_kill_ends_the_child_and_all_it_started(tmp_path: Path) -> None:
    child = start(
        tmp_path,
        "import subprocess, sys, time\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(grandchild.pid, flush=True)\n"
        "time.sleep(600)",
    )
    await output_of(child, "\n")
    grandchild = int(child.output())

    child.kill()

    assert child.returncode == -signal.SIGKILL
    await wait_until("the end of the grandchild", lambda: not is_alive(grandchild))


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; a killed one that nobody has collected does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return state_of(pid) != "Z"


def state_of(pid: int) -> str | None:
    """Read the state letter of a process; None on systems that have no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = start(
        tmp_path,
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf')\n"
        "time.sleep(600)",
    )
    await output_of(child, "deaf")

    assert await child.stop(timeout=0.2) == -signal.SIGKILL


async def test_a_paused_child_does_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    child = start(tmp_path, "import sys\nprint('ready')\nsys.stdin.read()\nprint('end')")
    await output_of(child, "ready")
    child.pause()
    await wait_until("the pause", lambda: state_of(child.pid) in ("T", None))
    assert child.is_running
    child.resume()

    assert await child.stop() == -signal.SIGTERM


async def test_a_child_that_ended_shows_its_last_words(tmp_path: Path) -> None:
    child = start(tmp_path, "print('no such database'); raise SystemExit(3)")

    assert await child.wait() == 3
    with pytest.raises(ChildProcessError, match="ended with code 3") as caught:
        child.require_running()
    assert "no such database" in str(caught.value)
    assert caught.value.returncode == 3
    child.kill()  # killing what is gone changes nothing
    assert child.returncode == 3
