"""Makes `.venv/` at the root hold exactly what the lock says; does nothing when it already does."""

from __future__ import annotations

import fcntl
import hashlib
import platform
from collections.abc import Generator
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

_STAMP = Path(".venv/.tools-sync")


def sync(root: Path) -> None:
    """Bring `.venv/` up to date with uv.lock.

    Raises:
        ToolError: the lock does not fit the pyprojects, names a host, or a file cannot be had.
    """
    state = state_digest(root)
    if is_current(root, state):
        return
    with exclusive(root):
        if is_current(root, state):
            return
        lock = root / "uv.lock"
        if not lock.exists():
            raise ToolError("uv.lock does not exist; run `python3 -m tools lock`")
        problems = problems_in(lock.read_text(encoding="utf-8"))
        if problems:
            raise ToolError("\n".join(problems))
        install(open_toolbox(root))
        (root / _STAMP).write_text(state, encoding="utf-8")


def install(box: Toolbox) -> None:
    """Fill the wheelhouse for the running interpreter and install all of the lock from it."""
    fill_wheelhouse(box)
    say("installing the workspace into .venv")
    selection = ["--locked", "--all-packages", "--all-groups", "--all-extras"]
    run(
        [box.uv, "sync", "--quiet", *selection, "--python", box.interpreter],
        cwd=box.root,
        env=offline_environment(),
        hint="If a pyproject changed, bring the lock up to date: `python3 -m tools lock`.",
    )


def state_digest(root: Path) -> str:
    """Return a digest of everything that decides what `.venv/` holds."""
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


def is_current(root: Path, state: str) -> bool:
    """Say whether the last completed sync saw this very state and its interpreter still works."""
    stamp = root / _STAMP
    if not stamp.exists() or not (root / ".venv/bin/python").exists():
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
