"""Builds the wheel and the sdist of every package, from the pinned build backend alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.console import run
from tools.errors import ToolError
from tools.uv import BUILD_REQUIREMENTS, offline_environment, open_toolbox
from tools.wheelhouse import fill_wheelhouse
from tools.workspace import Member


def build(root: Path, members: Sequence[Member], target: Path) -> None:
    """Build these packages into a folder; each wheel is built from the sdist, as for a release.

    Raises:
        ToolError: a package cannot be built.
    """
    box = open_toolbox(root)
    fill_wheelhouse(box)
    options = ["--quiet", "--build-constraints", BUILD_REQUIREMENTS, "--require-hashes"]
    for member in members:
        run(
            [box.uv, "build", *options, "--package", member.name, "--out-dir", target],
            cwd=root,
            env=offline_environment(),
        )


def wheel_of(folder: Path, member: Member) -> Path:
    """Return the wheel of a package in a folder.

    Raises:
        ToolError: there is none.
    """
    return _existing(folder / f"{member.import_name}-{member.version}-py3-none-any.whl")


def sdist_of(folder: Path, member: Member) -> Path:
    """Return the sdist of a package in a folder.

    Raises:
        ToolError: there is none.
    """
    return _existing(folder / f"{member.import_name}-{member.version}.tar.gz")


def _existing(path: Path) -> Path:
    if not path.exists():
        raise ToolError(f"{path.name} was not built; {path.parent} has what was")
    return path
