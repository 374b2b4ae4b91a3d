"""Makes environments hold exactly what the lock says; does nothing where one already does.

`.venv/` at the root holds every package and is what people and editors use. `.venvs/NAME/` holds
one package with its dev group and nothing else, which is what its `ci.sh` checks it in.
"""

from __future__ import annotations

import fcntl
import hashlib
import platform
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.console import run, say
from tools.errors import ToolError
from tools.lockfile import problems_in
from tools.uv import (
    BUILD_REQUIREMENTS,
    UV_REQUIREMENTS,
    Toolbox,
    base_interpreter,
    offline_environment,
    open_toolbox,
)
from tools.wheelhouse import fill_wheelhouse
from tools.workspace import read_members

SHARED = Path(".venv")
ALONE = Path(".venvs")

_STAMP = ".tools-sync"
_EVERYTHING = ("--all-packages", "--all-groups", "--all-extras")


def sync(root: Path) -> Path:
    """Bring `.venv/` up to date with uv.lock and return its folder.

    Raises:
        ToolError: the lock does not fit the pyprojects, names a host, or a file cannot be had.
    """
    return _bring_up_to_date(root, SHARED, _EVERYTHING)


def sync_alone(root: Path, name: str) -> Path:
    """Bring the environment of one package and its dev group up to date; return its folder.

    Raises:
        ToolError: as `sync` does.
    """
    return _bring_up_to_date(root, ALONE / name, ("--package", name))


def _bring_up_to_date(root: Path, environment: Path, selection: Sequence[str]) -> Path:
    folder = root / environment
    state = state_digest(root)
    if is_current(folder, state):
        return folder
    with exclusive(root):
        if is_current(folder, state):
            return folder
        lock = root / "uv.lock"
        if not lock.exists():
            raise ToolError("uv.lock does not exist; run `python3 -m tools lock`")
        problems = problems_in(lock.read_text(encoding="utf-8"))
        if problems:
            raise ToolError("\n".join(problems))
        install(open_toolbox(root), environment, selection)
        (folder / _STAMP).write_text(state, encoding="utf-8")
    return folder


def install(box: Toolbox, environment: Path, selection: Sequence[str]) -> None:
    """Fill the wheelhouse for the running interpreter and install a part of the lock from it."""
    fill_wheelhouse(box)
    say(f"installing into {environment}")
    run(
        [box.uv, "sync", "--quiet", "--locked", *selection, "--python", box.interpreter],
        cwd=box.root,
        env={**offline_environment(), "UV_PROJECT_ENVIRONMENT": str(environment)},
        hint="If a pyproject changed, bring the lock up to date: `python3 -m tools lock`.",
    )


def state_digest(root: Path) -> str:
    """Return a digest of everything that decides what an environment holds."""
    files = [Path("uv.lock"), Path("pyproject.toml"), UV_REQUIREMENTS, BUILD_REQUIREMENTS]
    files += [Path(member.folder, "pyproject.toml") for member in read_members(root)]
    digest = hashlib.sha256()
    for file in files:
        path = root / file
        content = path.read_bytes() if path.exists() else b"missing"
        digest.update(f"{file.as_posix()} {len(content)}\n".encode())
        digest.update(content)
    # The root is part of it because installed scripts and editable paths are absolute.
    digest.update(f"{platform.python_version()} {base_interpreter()} {root}".encode())
    return digest.hexdigest()


def is_current(folder: Path, state: str) -> bool:
    """Say whether an environment was last synced to this state and its interpreter works."""
    stamp = folder / _STAMP
    if not stamp.exists() or not (folder / "bin/python").exists():
        return False
    return stamp.read_text(encoding="utf-8") == state


@contextmanager
def exclusive(root: Path) -> Generator[None]:
    """Hold the repository's install lock, so that two commands never install at once."""
    folder = root / ".tools"
    folder.mkdir(exist_ok=True)
    with (folder / "install.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another tools command to finish installing")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
