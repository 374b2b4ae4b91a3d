"""Whether a process stands still, as its operating system says."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from dex_agents.testing import ChildProcess, wait_until

_STOPPED: Final = ("T", "t")
_POLL_SECONDS: Final = 0.005


async def until_standing_or_ended(process: ChildProcess) -> None:
    """Wait until a process that is about to signal itself has done so.

    Whoever lets it go on before that has no effect, and it would stand still for good.

    Raises:
        WaitTimeoutError: It did neither in a minute.
    """

    async def has_happened() -> bool:
        return not process.is_running or await is_standing(process)

    await wait_until(f"{process.name} to stand still or end", has_happened, interval=_POLL_SECONDS)


async def is_standing(process: ChildProcess) -> bool:
    """Return whether a process was stopped and not let go on."""
    return await _state(process.pid) in _STOPPED


async def _state(pid: int) -> str:
    """Return the letter that stands for the state of a process; empty for one that is gone."""
    if sys.platform == "linux":
        return _linux_state(pid)
    asked = await asyncio.create_subprocess_exec(
        "ps", "-o", "state=", "-p", str(pid), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asked.communicate()
    return output.decode().strip()[:1]


def _linux_state(pid: int) -> str:
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The name of the program comes first, in brackets, and may hold anything.
    return told.rpartition(")")[2].split()[0]
