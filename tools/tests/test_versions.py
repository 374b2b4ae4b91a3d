from __future__ import annotations

from pathlib import Path

import pytest
from workspace_trees import write_member

from tools.errors import ToolError
from tools.versions import check_versions, read_groups, version_problems
from tools.workspace import read_members


def edit(workspace: Path, folder: str, old: str, new: str) -> None:
    path = workspace / folder / "pyproject.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def pin_problems(workspace: Path) -> list[str]:
    return check_versions(read_groups(workspace), read_members(workspace))


def test_a_consistent_workspace_has_no_problem(workspace: Path) -> None:
    assert version_problems(workspace) == []


def test_different_versions_in_one_group_are_a_problem(workspace: Path) -> None:
    edit(workspace, "packages/agents/adapter", 'version = "0.1.0"', 'version = "0.2.0"')
    assert pin_problems(workspace) == [
        "group agents has several versions (core 0.1.0, adapter 0.2.0); give all the same one"
    ]


@pytest.mark.parametrize("pin", ["core>=0.1.0", "core==0.1.1", "core", "core==0.1.*"])
def test_a_pin_in_a_group_that_is_not_exact_is_a_problem(workspace: Path, pin: str) -> None:
    edit(workspace, "packages/agents/adapter", "core[embedded]==0.1.0", pin)
    (problem,) = pin_problems(workspace)
    assert f"'{pin}' must pin core==0.1.0 exactly" in problem


def test_a_range_that_shuts_out_the_engine_of_this_repository_is_a_problem(
    workspace: Path,
) -> None:
    edit(workspace, "packages/engine/embedded", 'version = "0.1.0"', 'version = "0.2.0"')
    (problem,) = pin_problems(workspace)
    assert "'engine>=0.1,<0.2' shuts out engine 0.2.0" in problem


def test_a_member_in_no_group_is_a_problem(workspace: Path) -> None:
    write_member(workspace, "packages/agents/extra", "extra")
    (problem,) = pin_problems(workspace)
    assert problem.startswith("extra is in no version group")


def test_a_member_in_two_groups_is_a_problem(workspace: Path) -> None:
    edit(workspace, ".", 'engine = ["engine"]', 'engine = ["engine", "core"]')
    assert any("core is in the version groups" in p for p in pin_problems(workspace))


def test_a_group_that_names_a_stranger_is_a_problem(workspace: Path) -> None:
    edit(workspace, ".", '["engine"]', '["engine", "gone"]')
    (problem,) = pin_problems(workspace)
    assert "version group engine names gone" in problem


def test_an_invalid_version_and_an_invalid_requirement_are_problems(workspace: Path) -> None:
    edit(workspace, "packages/engine/embedded", 'version = "0.1.0"', 'version = "one"')
    edit(workspace, "packages/agents/adapter", "framework>=3", "framework=>3")
    problems = "\n".join(pin_problems(workspace))
    assert "'one' is not a valid version" in problems
    assert "'framework=>3' is not a valid requirement" in problems


def test_a_root_without_groups_is_refused(workspace: Path) -> None:
    edit(workspace, ".", "[tool.dex-agents.versions.groups]", "[tool.other]")
    with pytest.raises(ToolError, match="has no"):
        pin_problems(workspace)
