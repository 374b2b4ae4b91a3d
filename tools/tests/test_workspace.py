from __future__ import annotations

from pathlib import Path

import pytest
from workspace_trees import write_member

from tools.errors import ToolError
from tools.workspace import read_members, requirement_name


def test_members_come_after_what_they_depend_on(workspace: Path) -> None:
    assert [member.name for member in read_members(workspace)] == ["engine", "core", "adapter"]


def test_a_circle_of_members_is_refused_by_name(workspace: Path) -> None:
    write_member(workspace, "packages/x/a", "a", dependencies=["b"])
    write_member(workspace, "packages/x/b", "b", dependencies=["a"])
    with pytest.raises(ToolError, match="circle: a, b"):
        read_members(workspace)


def test_two_members_of_one_name_are_refused(workspace: Path) -> None:
    write_member(workspace, "packages/x/core", "Core")
    with pytest.raises(ToolError, match="both named core"):
        read_members(workspace)


def test_a_member_without_a_static_version_is_refused(workspace: Path) -> None:
    path = workspace / "packages/agents/core/pyproject.toml"
    path.write_text(path.read_text().replace('version = "0.1.0"', 'dynamic = ["version"]'))
    with pytest.raises(ToolError, match=r"core/pyproject\.toml has no static project\.version"):
        read_members(workspace)


def test_a_folder_without_pyproject_is_refused(workspace: Path) -> None:
    (workspace / "packages/agents/empty").mkdir()
    with pytest.raises(ToolError, match="does not exist"):
        read_members(workspace)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Some_Package[extra]>=1", "some-package"),
        ("a.b ; python_version < '3.12'", "a-b"),
        ("plain", "plain"),
    ],
)
def test_requirement_names_are_normalised(text: str, name: str) -> None:
    assert requirement_name(text) == name


def test_a_requirement_without_a_name_is_refused() -> None:
    with pytest.raises(ToolError, match="does not start with a package name"):
        requirement_name(">=1")
