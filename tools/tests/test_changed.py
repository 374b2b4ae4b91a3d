from __future__ import annotations

import json
from pathlib import Path

import pytest
from git_trees import commit_all, git
from workspace_trees import write_member

from tools.changed import affected, changed_jobs
from tools.cli import main
from tools.errors import ToolError
from tools.workspace import read_members

ALL = ["engine", "core", "adapter"]


def touch(root: Path, file: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as opened:
        opened.write("# changed\n")


def changed(root: Path, ref: str = "main") -> list[str]:
    return [job.name for job in changed_jobs(root, ref)]


def test_without_a_change_nothing_is_affected(committed: Path) -> None:
    assert changed(committed) == []


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("packages/engine/embedded/src/engine/new.py", ALL),
        # The core's tests use the adapter, so they are affected as well.
        ("packages/agents/adapter/README.md", ["core", "adapter"]),
        ("packages/agents/core/pyproject.toml", ["core", "adapter"]),
        ("uv.lock", ALL),
        ("tools/cli.py", ALL),
        (".github/workflows/ci.yml", ALL),
        ("packages/README.txt", ALL),
        ("docs/guide.md", []),
        ("changes/agents.fixed.it.md", []),
        ("CONTRIBUTING.md", []),
    ],
)
def test_a_change_affects_its_package_and_those_that_depend_on_it(
    committed: Path, file: str, names: list[str]
) -> None:
    touch(committed, file)
    assert changed(committed) == names
    commit_all(committed)
    assert changed(committed, "main~1") == names


def test_tests_that_use_a_package_do_not_hand_its_changes_on(committed: Path) -> None:
    write_member(committed, "packages/agents/zzz", "zzz", dev=["engine"])
    write_member(committed, "packages/agents/zzzz", "zzzz", dependencies=["zzz"])
    names = affected(read_members(committed), ["packages/engine/embedded/a.py"])
    assert names == {*ALL, "zzz"}


def test_what_the_other_branch_did_meanwhile_does_not_count(committed: Path) -> None:
    git(committed, "switch", "--quiet", "--create", "topic")
    touch(committed, "packages/agents/core/src/core/a.py")
    commit_all(committed)
    git(committed, "switch", "--quiet", "main")
    touch(committed, "uv.lock")
    commit_all(committed)
    git(committed, "switch", "--quiet", "topic")
    assert changed(committed) == ["core", "adapter"]


def test_a_moved_file_counts_for_both_packages(committed: Path) -> None:
    touch(committed, "packages/engine/embedded/a.py")
    commit_all(committed)
    target = committed / "packages/agents/core/a.py"
    (committed / "packages/engine/embedded/a.py").rename(target)
    assert changed(committed) == ALL


def test_a_name_that_git_does_not_know_is_refused_with_advice(committed: Path) -> None:
    with pytest.raises(ToolError, match="shallow clone"):
        changed(committed, "origin/gone")


def test_the_command_takes_the_name(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    touch(committed, "packages/agents/core/README.md")
    assert main(["discover", "--changed-since", "main"], root=committed) == 0
    assert capsys.readouterr().out.splitlines() == [
        "packages/agents/core/ci.sh",
        "packages/agents/adapter/ci.sh",
    ]


@pytest.mark.parametrize(
    ("target", "names"), [(None, ALL), ("main", ["core", "adapter"]), ("unchanged", [])]
)
def test_github_gets_what_a_pull_request_touches_and_everything_otherwise(
    committed: Path, monkeypatch: pytest.MonkeyPatch, target: str | None, names: list[str]
) -> None:
    git(committed, "update-ref", "refs/remotes/origin/main", "HEAD")
    touch(committed, "packages/agents/core/README.md")
    commit_all(committed)
    git(committed, "update-ref", "refs/remotes/origin/unchanged", "HEAD")
    output = committed / ".git/github-output"
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    monkeypatch.delenv("GITHUB_BASE_REF", raising=False)
    if target is not None:
        monkeypatch.setenv("GITHUB_BASE_REF", target)
    assert main(["discover", "--for-github"], root=committed) == 0
    matrix, any_line = output.read_text().splitlines()
    assert matrix.startswith("matrix=")
    entries = json.loads(matrix.removeprefix("matrix="))["include"]
    assert [entry["name"] for entry in entries] == names
    assert any_line == f"any={'true' if names else 'false'}"


def test_outside_a_github_step_the_other_option_is_named(
    committed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_OUTPUT", raising=False)
    assert main(["discover", "--for-github"], root=committed) == 1
    assert "discover --json" in capsys.readouterr().err
