"""Small workspaces on disk that tests break on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.compatibility import BEGIN, END, updated_readmes
from tools.workspace import read_members

GOOD_CI = "#!/usr/bin/env bash\nexit 0\n"
GOOD_README = f"# A title\n\n{BEGIN}\n{END}\n"


def write_root(root: Path, groups: Mapping[str, Sequence[str]]) -> None:
    """Write a root pyproject with these version groups."""
    lines = [
        "[tool.uv]",
        'required-version = "==1.2.3"',
        "[tool.uv.workspace]",
        'members = ["packages/*/*"]',
        "[tool.dex-agents.versions.groups]",
        *(f"{name} = {json.dumps(list(members))}" for name, members in groups.items()),
    ]
    (root / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (root / "README.md").write_text(GOOD_README, encoding="utf-8")
    (root / "CHANGELOG.md").write_text("# Changelog\n\nWhat changed.\n", encoding="utf-8")
    for group in groups:
        write_fragment(root, f"{group}.added.all-of-it", "Everything is new.")


def write_fragment(root: Path, name: str, text: str) -> None:
    """Write one changelog fragment, named without its `.md`."""
    path = root / "changes" / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def write_tables(root: Path) -> None:
    """Bring the compatibility table of every README up to date."""
    for path, text in updated_readmes(root, read_members(root)).items():
        (root / path).write_text(text, encoding="utf-8")


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
        'requires-python = ">=3.11"',
        f"dependencies = {json.dumps(list(dependencies))}",
        "[project.optional-dependencies]",
        *(f"{extra} = {json.dumps(list(needs))}" for extra, needs in (extras or {}).items()),
        "[dependency-groups]",
        f"dev = {json.dumps(list(dev))}",
    ]
    (path / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (path / "README.md").write_text(GOOD_README, encoding="utf-8")
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
