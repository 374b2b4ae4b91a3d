from __future__ import annotations

import json
from pathlib import Path

import pytest
from workspace_trees import GOOD_CI

from tools.cli import main
from tools.discover import as_matrix, as_text, discover
from tools.errors import ToolError


def test_every_member_is_discovered_in_dependency_order(workspace: Path) -> None:
    assert as_text(discover(workspace)).splitlines() == [
        "packages/engine/embedded/ci.sh",
        "packages/agents/core/ci.sh",
        "packages/agents/adapter/ci.sh",
    ]


def test_the_matrix_carries_name_folder_and_script(workspace: Path) -> None:
    first = json.loads(as_matrix(discover(workspace)))["include"][0]
    assert first == {
        "name": "engine",
        "folder": "packages/engine/embedded",
        "script": "packages/engine/embedded/ci.sh",
    }


def test_a_member_without_ci_script_is_an_error_that_names_it(workspace: Path) -> None:
    (workspace / "packages/agents/core/ci.sh").unlink()
    with pytest.raises(ToolError, match=r"packages/agents/core/ci\.sh does not exist"):
        discover(workspace)


def test_a_script_that_is_not_executable_is_an_error_that_says_what_to_run(
    workspace: Path,
) -> None:
    (workspace / "packages/agents/core/ci.sh").chmod(0o644)
    with pytest.raises(ToolError, match=r"run `chmod \+x packages/agents/core/ci\.sh`"):
        discover(workspace)


def test_all_problems_are_named_at_once(workspace: Path) -> None:
    (workspace / "packages/agents/core/ci.sh").unlink()
    (workspace / "packages/agents/adapter/ci.sh").chmod(0o644)
    with pytest.raises(ToolError) as caught:
        discover(workspace)
    assert len(str(caught.value).splitlines()) == 2


def test_a_script_outside_the_workspace_is_an_error(workspace: Path) -> None:
    root = workspace / "pyproject.toml"
    root.write_text(root.read_text().replace('"packages/*/*"', '"packages/agents/*"'))
    with pytest.raises(ToolError, match=r"embedded has a .* but is no workspace member"):
        discover(workspace)


def test_the_command_ends_with_1_and_the_reason(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["discover"], root=workspace) == 0
    (workspace / "packages/agents/core/ci.sh").unlink()
    assert main(["discover", "--json"], root=workspace) == 1
    assert "core/ci.sh does not exist" in capsys.readouterr().err


def test_scripts_in_deeper_folders_are_not_taken_for_packages(workspace: Path) -> None:
    deeper = workspace / "packages/agents/core/examples/ci.sh"
    deeper.parent.mkdir()
    deeper.write_text(GOOD_CI)
    assert len(discover(workspace)) == 3
