from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import lock as lock_module
from tools.errors import ToolError
from tools.lock import lock
from tools.uv import Toolbox, pip_index


@pytest.fixture
def box(workspace: Path) -> Toolbox:
    python = Path(sys.executable)
    return Toolbox(workspace, python, python, workspace / "uv")


def test_pips_own_index_setting_is_used_for_resolving(
    box: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    assert pip_index(box) == "https://mirror.example/simple"


def test_a_failed_resolution_leaves_the_former_lock_in_place(
    workspace: Path, box: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = b"the former lock\n"
    (workspace / "uv.lock").write_bytes(former)
    # A uv that writes half a lock and then fails.
    box.uv.write_text("#!/bin/sh\necho half > uv.lock\nexit 2\n")
    box.uv.chmod(0o755)

    def opened(root: Path) -> Toolbox:
        assert root == workspace
        return box

    monkeypatch.setattr(lock_module, "open_toolbox", opened)
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    with pytest.raises(ToolError, match="exit code 2"):
        lock(workspace)
    assert (workspace / "uv.lock").read_bytes() == former


def test_a_lock_that_did_not_exist_does_not_exist_after_a_failure(
    workspace: Path, box: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.uv.write_text("#!/bin/sh\necho 'x = \"https://host.example\"' > uv.lock\n")
    box.uv.chmod(0o755)

    def opened(root: Path) -> Toolbox:
        assert root == workspace
        return box

    monkeypatch.setattr(lock_module, "open_toolbox", opened)
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    with pytest.raises(ToolError, match="names a host"):
        lock(workspace)
    assert not (workspace / "uv.lock").exists()
