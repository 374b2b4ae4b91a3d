from __future__ import annotations

from pathlib import Path

import pytest
from git_trees import commit_all, git
from workspace_trees import write_member, write_root, write_tables


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A good workspace: an engine, a core with the engine as an extra, and an adapter."""
    write_root(tmp_path, {"agents": ["core", "adapter"], "engine": ["engine"]})
    write_member(
        tmp_path,
        "packages/agents/adapter",
        "adapter",
        dependencies=["core[embedded]==0.1.0", "framework>=3"],
    )
    write_member(
        tmp_path,
        "packages/agents/core",
        "core",
        extras={"embedded": ["engine>=0.1,<0.2"]},
        dev=["adapter"],
    )
    write_member(tmp_path, "packages/engine/embedded", "engine")
    write_tables(tmp_path)
    return tmp_path


@pytest.fixture
def committed(workspace: Path) -> Path:
    """The same workspace as a git repository with one commit on `main`."""
    git(workspace, "init", "--quiet", "--initial-branch=main")
    commit_all(workspace)
    return workspace
