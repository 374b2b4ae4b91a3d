"""The pinned uv: getting it into a local folder, and the environment it runs in.

The folder is `.tools/<interpreter>/`, a virtual environment of the interpreter in use. Its pip also
fills the wheelhouse, because which files fit depends on the interpreter.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.console import capture, run, say
from tools.errors import ToolError
from tools.lockfile import WHEELHOUSE
from tools.workspace import read_toml, table

UV_REQUIREMENTS = Path("tools/requirements/uv.txt")
BUILD_REQUIREMENTS = Path("tools/requirements/build.txt")

# Settings of the caller that would lead uv to an index or to another environment.
_REMOVED = (
    "UV_CONSTRAINT",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FROZEN",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_OVERRIDE",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "VIRTUAL_ENV",
    "PYTHONHOME",
    "PYTHONPATH",
)


@dataclass(frozen=True)
class Toolbox:
    """Programs that install dependencies, and the interpreter they install for."""

    root: Path
    interpreter: Path
    python: Path
    uv: Path

    @property
    def wheelhouse(self) -> Path:
        """Folder that holds every file the lock can install."""
        return self.root / WHEELHOUSE


def offline_environment() -> dict[str, str]:
    """Return the environment in which uv, started at the root, sees only the wheelhouse."""
    env = online_environment()
    env["UV_NO_INDEX"] = "1"
    # Relative on purpose: uv finds a lock's `registry = "wheelhouse"` only under this spelling.
    env["UV_FIND_LINKS"] = WHEELHOUSE
    return env


def online_environment() -> dict[str, str]:
    """Return the environment in which uv may ask an index, with the caller's choices removed."""
    env = {name: value for name, value in os.environ.items() if name not in _REMOVED}
    env["UV_PYTHON_DOWNLOADS"] = "never"
    env["UV_NO_PROGRESS"] = "1"
    # Behind a proxy that looks into connections only the machine's own certificates are right.
    env.setdefault("UV_SYSTEM_CERTS", "1")
    return env


def base_interpreter() -> Path:
    """Return the running interpreter, or the one its virtual environment was made from."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Path(base).resolve()


def pinned_version(root: Path) -> str:
    """Return the uv version that the root pyproject pins.

    Raises:
        ToolError: `tool.uv.required-version` is not an exact version.
    """
    required = table(read_toml(root / "pyproject.toml"), "tool", "uv").get("required-version", "")
    if not isinstance(required, str) or not required.startswith("=="):
        raise ToolError('pyproject.toml: set tool.uv.required-version to an exact "==X.Y.Z"')
    return required.removeprefix("==").strip()


def open_toolbox(root: Path) -> Toolbox:
    """Return the toolbox of the running interpreter and make it first where it is missing.

    Raises:
        ToolError: the virtual environment cannot be made, or uv cannot be installed.
    """
    version = pinned_version(root)
    tag = f"{sys.implementation.name}-{platform.python_version()}-uv-{version}"
    folder = root / ".tools" / tag
    interpreter = base_interpreter()
    box = Toolbox(root, interpreter, folder / "bin" / "python", folder / "bin" / "uv")
    done = folder / "complete"
    if done.exists() and done.read_text(encoding="utf-8") == str(interpreter):
        return box
    say(f"installing uv {version} for Python {platform.python_version()} into {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    run(
        [interpreter, "-m", "venv", folder],
        cwd=root,
        hint="The standard library's venv is needed; some systems ship it as a separate package.",
    )
    install = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
    run(
        [box.python, *install, "--require-hashes", "--only-binary=:all:", "-r", UV_REQUIREMENTS],
        cwd=root,
        hint="pip could not install uv; check pip's index settings and the network.",
    )
    found = capture([box.uv, "--version"], cwd=root).split()
    if version not in found:
        raise ToolError(f"{UV_REQUIREMENTS} installs uv {' '.join(found)}, wanted {version}")
    done.write_text(str(interpreter), encoding="utf-8")
    return box


def index_environment(box: Toolbox) -> dict[str, str]:
    """Return the environment in which uv uses the index that pip is set up to use.

    What the caller set up for uv itself comes first.
    """
    env = online_environment()
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX"):
        if name in os.environ:
            env[name] = os.environ[name]
    if "UV_DEFAULT_INDEX" not in env:
        index = pip_index(box)
        if index is not None:
            env["UV_DEFAULT_INDEX"] = index
    return env


def pip_index(box: Toolbox) -> str | None:
    """Return the main index in pip's settings, or None where pip uses its default."""
    if "PIP_INDEX_URL" in os.environ:
        return os.environ["PIP_INDEX_URL"]
    try:
        found = capture(
            [box.python, "-m", "pip", "config", "get", "global.index-url"], cwd=box.root
        )
    except ToolError:  # pip's way of saying that nothing is set
        return None
    return found.strip() or None
