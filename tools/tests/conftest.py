from __future__ import annotations

from pathlib import Path

import pytest
from workspace_trees import write_member, write_root


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
    return tmp_path
