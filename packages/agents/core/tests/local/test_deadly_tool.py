"""A tool that takes the whole application with it, in the default form: the engine inside."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

APPLICATION = Path(__file__).resolve().parent.parent / "deadly_application.py"
ATTEMPTS = 3
"""What a session makes of a call of a tool that only reads."""


async def application(folder: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(APPLICATION), str(folder), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode().strip()


async def test_a_tool_that_ends_its_application_at_once_uses_its_attempts_up(
    tmp_path: Path,
) -> None:
    deaths = 0
    while (ended := await application(tmp_path))[0] == -signal.SIGKILL:
        deaths += 1
        assert deaths <= ATTEMPTS + 1
    # The first death comes before its hand-out was written, so it is the one that is not counted.
    runs = (tmp_path / "runs").read_text().splitlines()
    assert len(runs) == deaths == ATTEMPTS + 1
    assert runs[1:] == [f"attempt {number}" for number in range(1, ATTEMPTS + 1)]
    assert ended == (0, "I could not look that up.")
