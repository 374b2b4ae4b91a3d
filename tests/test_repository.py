"""The rules of this repository, each held by a function of `tools` that has tests of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cli import parser
from tools.discover import discover
from tools.lockfile import problems_in
from tools.rules.imports import ARROWS, import_problems
from tools.rules.tracked import content_problems, tracked_files
from tools.rules.workflows import takes, weaknesses, workflow_problems
from tools.versions import version_problems
from tools.workspace import Member, read_members, read_toml, table

ROOT = Path(__file__).resolve().parent.parent
MEMBERS = read_members(ROOT)


def by_name(member: Member) -> str:
    return member.name


def test_imports_follow_the_arrows_and_layers() -> None:
    assert import_problems(ROOT) == []


def test_the_arrows_speak_of_exactly_the_packages_that_exist() -> None:
    assert ARROWS.keys() == {member.import_name for member in MEMBERS}


def test_the_lock_names_no_host() -> None:
    assert problems_in((ROOT / "uv.lock").read_text(encoding="utf-8")) == []


def test_no_file_names_an_index_host_or_a_path_of_a_machine() -> None:
    assert content_problems(ROOT, tracked_files(ROOT)) == []


def test_every_member_has_an_executable_ci_script() -> None:
    assert {job.name for job in discover(ROOT)} == {member.name for member in MEMBERS}


def test_versions_and_pins_agree() -> None:
    assert version_problems(ROOT) == []


def test_workflows_run_only_what_also_runs_elsewhere() -> None:
    assert workflow_problems(ROOT, takes(parser().parse_args)) == []


def test_workflows_have_no_known_weakness() -> None:
    assert weaknesses(ROOT) == ""


@pytest.mark.parametrize("member", MEMBERS, ids=by_name)
def test_a_package_has_what_publishing_it_alone_needs(member: Member) -> None:
    folder = ROOT / member.folder
    for name in ("README.md", "ci.sh", "tests", f"src/{member.import_name}/py.typed"):
        assert (folder / name).exists(), f"{member.folder}/{name} is missing"
    licence = (folder / "LICENSE").read_bytes()
    assert licence == (ROOT / "LICENSE").read_bytes(), f"{member.folder}/LICENSE differs"


@pytest.mark.parametrize("member", MEMBERS, ids=by_name)
def test_tests_of_a_package_find_their_helpers_like_those_of_every_other(member: Member) -> None:
    tool = table(read_toml(ROOT / "pyproject.toml"), "tool")
    folder = f"{member.folder}/tests"
    assert folder in tool["pytest"]["ini_options"]["pythonpath"]
    assert folder in tool["pyright"]["extraPaths"]
    assert folder in [entry["root"] for entry in tool["pyright"]["executionEnvironments"]]
