"""Finds the Python interpreters of this machine that the packages support.

An interpreter may be a program on PATH, or stand behind a shim that runs it only when a version is
selected; pyenv is one such.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What the packages' classifiers say; a test compares.
SUPPORTED = ("3.11", "3.12", "3.13")

_TIMEOUT_SECONDS = 30
_ASK = "import platform, sys; print(platform.python_version()); print(sys.executable)"


@dataclass(frozen=True)
class Interpreter:
    """One interpreter.

    Attributes:
        version: Its full version, such as 3.12.1.
        path: Its program.
        found: Where it was found, in words.
    """

    version: str
    path: Path
    found: str

    @property
    def minor(self) -> str:
        """Its version without the last number."""
        return ".".join(self.version.split(".")[:2])


def find_pythons(
    minors: Sequence[str] = SUPPORTED, environment: Mapping[str, str] = os.environ
) -> list[Interpreter]:
    """Return one interpreter for each of these versions that the machine has, in order."""
    found = [_find(minor, environment) for minor in minors]
    return [interpreter for interpreter in found if interpreter is not None]


def _find(minor: str, environment: Mapping[str, str]) -> Interpreter | None:
    direct = _ask(f"python{minor}", minor, environment, "on PATH")
    if direct is not None:
        return direct
    for version in _pyenv_versions(minor, environment):
        selected = {**environment, "PYENV_VERSION": version}
        behind = _ask(f"python{minor}", minor, selected, f"through PYENV_VERSION={version}")
        if behind is not None:
            return behind
    return None


def _ask(
    program: str, minor: str, environment: Mapping[str, str], found: str
) -> Interpreter | None:
    output = _output([program, "-I", "-c", _ASK], environment)
    if output is None:
        return None
    version, _, path = output.strip().partition("\n")
    if not version.startswith(f"{minor}."):
        return None
    return Interpreter(version, Path(path), found)


def _pyenv_versions(minor: str, environment: Mapping[str, str]) -> list[str]:
    """Return the versions of one minor that pyenv has, newest first."""
    listed = (_output(["pyenv", "versions", "--bare"], environment) or "").split()
    own = [text for text in listed if re.fullmatch(rf"{re.escape(minor)}\.\d+", text)]
    return sorted(own, key=lambda text: int(text.rpartition(".")[2]), reverse=True)


def _output(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    try:
        # `env` looks the program up on the PATH that is passed, not on that of this process.
        done = subprocess.run(
            ["/usr/bin/env", *command],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
