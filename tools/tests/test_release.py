from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from git_trees import AUTHOR, commit_all
from workspace_trees import write_fragment

from tools import commands
from tools.bump import apply, plan
from tools.cli import main
from tools.errors import ToolError
from tools.release import ready_release, tagged_release
from tools.smoke import build as smoke_build
from tools.smoke import commands as smoke_commands
from tools.workspace import Member


@pytest.fixture
def released(committed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace whose agents are at 0.2.0, with the section in the changelog committed."""
    monkeypatch.setattr(commands, "sync", lambda root: root / ".venv")
    monkeypatch.setattr(commands, "inside", lambda _: True)
    for name, value in AUTHOR.items():
        monkeypatch.setenv(name, value)
    apply(committed, plan(committed, "agents", "0.2.0", "2026-01-02"))
    commit_all(committed)
    return committed


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Build files without content; keep the names of the packages that were built."""
    names: list[str] = []

    def build(_: Path, members: Sequence[Member], target: Path) -> None:
        target.mkdir(exist_ok=True)
        (target / ".gitignore").write_text("*")
        for member in members:
            (target / f"{member.import_name}.whl").touch()
            names.append(member.name)

    monkeypatch.setattr(smoke_build, "build", build)
    monkeypatch.setattr(smoke_commands, "check_contents", lambda *_: None)
    return names


def test_a_ready_group_has_its_packages_its_tag_and_its_notes(released: Path) -> None:
    release = ready_release(released, "agents")
    assert release.tag == "agents-v0.2.0"
    assert [member.name for member in release.members] == ["core", "adapter"]
    assert release.notes == "### Added\n\n- Everything is new.\n"
    assert tagged_release(released, "agents-v0.2.0") == release


@pytest.mark.parametrize(
    ("tag", "problem"),
    [
        ("agents-v0.3.0", "is not the version of the packages, which is 0.2.0"),
        ("v0.2.0", "is no release tag"),
        ("main", "is no release tag"),
        ("other-v0.2.0", "other is no version group"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(released: Path, tag: str, problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        tagged_release(released, tag)


def test_a_change_that_the_changelog_lacks_keeps_a_group_from_its_release(released: Path) -> None:
    write_fragment(released, "agents.fixed.late", "A late change.")
    with pytest.raises(ToolError, match=r"agents\.fixed\.late\.md: not in CHANGELOG\.md yet"):
        ready_release(released, "agents")


def test_a_group_that_was_never_given_its_version_cannot_be_released(released: Path) -> None:
    with pytest.raises(ToolError, match=r"engine\.added\.all-of-it\.md: not in CHANGELOG\.md yet"):
        ready_release(released, "engine")


def test_a_broken_pin_keeps_a_group_from_its_release(released: Path) -> None:
    path = released / "packages/agents/adapter/pyproject.toml"
    path.write_text(path.read_text().replace("==0.2.0", "==0.1.0"))
    with pytest.raises(ToolError, match=r"must pin core==0\.2\.0"):
        ready_release(released, "agents")


def test_the_commands_check_tag_and_build(
    released: Path, built: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", "check", "agents"], root=released) == 0
    assert capsys.readouterr().out.startswith("### Added")
    assert main(["release", "tag", "agents"], root=released) == 0
    assert "would tag this commit agents-v0.2.0" in capsys.readouterr().err
    assert main(["release", "tag", "agents", "--write"], root=released) == 0
    line = ["git", "tag", "--list", "--format=%(refname:short) %(contents)"]
    shown = subprocess.run(line, cwd=released, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("agents-v0.2.0 agents 0.2.0\n\n### Added\n\n- Everything is new.\n")
    assert main(["release", "build", "--tag", "agents-v0.2.0"], root=released) == 0
    assert built == ["core", "adapter"]
    assert sorted(p.name for p in (released / "dist").iterdir()) == ["adapter.whl", "core.whl"]


@pytest.mark.usefixtures("built")
def test_a_folder_that_holds_something_is_not_built_into(
    released: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_REF_NAME", "agents-v0.2.0")
    (released / "dist").mkdir()
    (released / "dist/old.whl").touch()
    assert main(["release", "build"], root=released) == 1
    assert "everything in it would be published" in capsys.readouterr().err
    monkeypatch.delenv("GITHUB_REF_NAME")
    assert main(["release", "build"], root=released) == 1
    assert "name the release with --tag" in capsys.readouterr().err


def test_a_dirty_tree_and_a_second_tag_are_refused(
    released: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (released / "new.txt").touch()
    assert main(["release", "tag", "agents", "--write"], root=released) == 1
    assert "the work tree has changes" in capfd.readouterr().err
    (released / "new.txt").unlink()
    assert main(["release", "tag", "agents", "--write"], root=released) == 0
    assert main(["release", "tag", "agents", "--write"], root=released) == 1
    assert "A tag is never moved" in capfd.readouterr().err
