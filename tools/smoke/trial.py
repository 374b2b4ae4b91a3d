"""One trial: a fresh environment outside the repository, one package in it, and its use."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.errors import ToolError
from tools.smoke.pythons import Interpreter
from tools.uv import Toolbox, index_environment
from tools.workspace import Member

PROGRAMS = Path(__file__).with_name("programs")

# `lowest-direct` of uv: the lowest version of what the packages ask for, the newest of the rest.
RESOLUTIONS = {"newest": "highest", "lowest": "lowest-direct"}

_PROGRAM_SECONDS = 180


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        member: The package.
        extras: Its extras that are installed.
        kind: `wheel` or `sdist`.
        resolution: A key of `RESOLUTIONS`.
        interpreter: For which Python.
        requirements: What is installed.
    """

    member: Member
    extras: tuple[str, ...]
    kind: str
    resolution: str
    interpreter: Interpreter
    requirements: Sequence[str]

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        what = f"{self.member.name}{extras} ({self.kind})"
        return f"{what}, {self.resolution} dependencies, Python {self.interpreter.version}"


def run_trial(box: Toolbox, trial: Trial) -> str:
    """Install and use the package; return what the program says about it.

    Raises:
        ToolError: it cannot be installed, or the program failed.
    """
    with tempfile.TemporaryDirectory(prefix="dex-smoke-") as name:
        folder = Path(name).resolve()
        python = folder / "environment/bin/python"
        env = {**index_environment(box), "HOME": os.environ.get("HOME", name)}
        _run(
            [box.uv, "venv", "--quiet", "--python", trial.interpreter.path, "environment"],
            folder,
            env,
        )
        listed = folder / "requirements.txt"
        listed.write_text("\n".join(trial.requirements) + "\n", encoding="utf-8")
        _run(
            [
                *[box.uv, "pip", "install", "--quiet", "--python", python, "-r", listed],
                *["--resolution", RESOLUTIONS[trial.resolution]],
                *["--build-constraints", box.root / "tools/requirements/build.txt"],
            ],
            folder,
            env,
        )
        _run([box.uv, "pip", "check", "--quiet", "--python", python], folder, env)
        # -I: nothing of the caller's environment and folder reaches the program.
        names = [trial.member.name, trial.member.import_name]
        program = [python, "-I", PROGRAMS / "try_package.py", *names, *trial.extras]
        return _run(program, folder, env).strip()


def _run(command: Sequence[str | Path], folder: Path, env: dict[str, str]) -> str:
    line = [str(part) for part in command]
    try:
        done = subprocess.run(
            line, cwd=folder, env=env, capture_output=True, text=True, timeout=_PROGRAM_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"`{' '.join(line)}` did not end in {_PROGRAM_SECONDS} s") from error
    if done.returncode != 0:
        output = f"{done.stdout}\n{done.stderr}".strip()
        raise ToolError(f"`{' '.join(line)}` failed with code {done.returncode}:\n{output}")
    return done.stdout
