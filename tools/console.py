"""What commands say while they work, and how they start other programs."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tools.errors import ToolError


def say(message: str) -> None:
    """Print one progress line to stderr, so that stdout stays for a command's result."""
    print(f"tools: {message}", file=sys.stderr, flush=True)


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    hint: str = "",
) -> None:
    """Run a program with this process's output.

    Raises:
        ToolError: the program is missing or its exit code is not 0; `hint` says what to do then.
    """
    code = run_for_code(command, cwd=cwd, env=env)
    if code != 0:
        raise ToolError(_failed(command, f"exit code {code}", hint))


def run_for_code(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
) -> int:
    """Run a program and return its exit code.

    Args:
        command: The program and its arguments.
        cwd: Where it runs.
        env: Its environment; that of this process by default.
        output: Gets all it writes, instead of this process's output.
    """
    line = [str(part) for part in command]
    try:
        return subprocess.run(line, cwd=cwd, env=env, stdout=output, stderr=output).returncode
    except FileNotFoundError as error:
        raise ToolError(_failed(command, "the program does not exist", "")) from error


def capture(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    hint: str = "",
) -> str:
    """Run a program and return what it wrote to stdout.

    Raises:
        ToolError: the program is missing or failed; the message carries all it wrote.
    """
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=env,
            input=stdin,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise ToolError(_failed(command, "the program does not exist", hint)) from error
    if done.returncode != 0:
        output = "\n".join(part for part in (done.stderr.strip(), done.stdout.strip()) if part)
        reason = f"exit code {done.returncode}\n{output}"
        raise ToolError(_failed(command, reason, hint))
    return done.stdout


def _failed(command: Sequence[str | Path], reason: str, hint: str) -> str:
    line = shlex.join(str(part) for part in command)
    return f"`{line}` failed: {reason}" + (f"\n{hint}" if hint else "")
