"""Small workspaces on disk that tests break on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

GOOD_CI = "#!/usr/bin/env bash\nexit 0\n"


def write_root(root: Path, groups: Mapping[str, Sequence[str]]) -> None:
    """Write a root pyproject with these version groups."""
    lines = [
        "[tool.uv]",
        'required-version = "==1.2.3"',
        "[tool.uv.workspace]",
        'members = ["packages/*/*"]',
        "[tool.dex-agents.versions.groups]",
        *(f"{name} = {list(members)!r}" for name, members in groups.items()),
    ]
    (root / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_member(
    root: Path,
    folder: str,
    name: str,
    *,
    version: str = "0.1.0",
    dependencies: Sequence[str] = (),
    dev: Sequence[str] = (),
    extras: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write one package with an executable ci.sh and return its folder."""
    path = root / folder
    path.mkdir(parents=True)
    lines = [
        "[project]",
        f'name = "{name}"',
        f'version = "{version}"',
        f"dependencies = {list(dependencies)!r}",
        "[project.optional-dependencies]",
        *(f"{extra} = {list(needs)!r}" for extra, needs in (extras or {}).items()),
        "[dependency-groups]",
        f"dev = {list(dev)!r}",
    ]
    (path / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    script = path / "ci.sh"
    script.write_text(GOOD_CI, encoding="utf-8")
    script.chmod(0o755)
    return path


def write_sources(root: Path, files: Mapping[str, str]) -> None:
    """Write source files, each given by its path below `packages/`."""
    for name, text in files.items():
        path = root / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
