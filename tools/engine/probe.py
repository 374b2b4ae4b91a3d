"""Asks a `dexcli` program what it is and which options its development server takes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tools.errors import ToolError

_TIMEOUT_SECONDS = 30
_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+)\b")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)")


def version_of(program: Path) -> str:
    """Return the version a program says it is.

    Raises:
        ToolError: it cannot be run or says none.
    """
    text = _output(program, "version")
    match = _VERSION.search(text)
    if match is None:
        raise ToolError(f"`{program} version` names no version: {text.strip()[:200]!r}")
    return match.group(1)


def dev_flags(program: Path) -> frozenset[str]:
    """Return the options that `dexcli dev` lists in its help; they differ between versions.

    Raises:
        ToolError: it cannot be run or lists none.
    """
    flags = frozenset(_FLAG.findall(_output(program, "dev", "--help")))
    if not flags:
        raise ToolError(f"`{program} dev --help` lists no option")
    return flags


def _output(program: Path, *arguments: str) -> str:
    line = " ".join([str(program), *arguments])
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise ToolError(f"`{line}` cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"`{line}` did not end within {_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0:
        raise ToolError(f"`{line}` failed with code {done.returncode}: {done.stderr.strip()[:200]}")
    # Some versions print their help on stderr.
    return done.stdout + done.stderr
