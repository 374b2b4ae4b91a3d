from __future__ import annotations

from pathlib import Path

import pytest
from git_trees import commit_all
from workspace_trees import write_fragment

from tools import commands
from tools.bump import apply, current_version, diff_of, next_version, plan
from tools.cli import main
from tools.errors import ToolError
from tools.versions import version_problems

LOCK = """version = 1

[[package]]
name = "core"
version = "0.1.0"
source = { editable = "packages/agents/core" }

[[package]]
name = "adapter"
version = "0.1.0"

[[package]]
name = "framework"
version = "0.1.0"
"""


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands believe that they run in the workspace's own environment."""

    def synced(root: Path) -> Path:
        return root / ".venv"

    def yes(_: Path) -> bool:
        return True

    monkeypatch.setattr(commands, "sync", synced)
    monkeypatch.setattr(commands, "inside", yes)


@pytest.mark.parametrize(
    ("current", "part", "following"),
    [
        ("0.1.0", "patch", "0.1.1"),
        ("0.1.9", "minor", "0.2.0"),
        ("0.9.3", "major", "1.0.0"),
        ("0.2.0rc1", "minor", "0.2.0"),
        ("1", "patch", "1.0.1"),
    ],
)
def test_the_next_version_follows_from_the_part(current: str, part: str, following: str) -> None:
    assert next_version(current, part) == following


def test_a_new_version_moves_pins_tables_lock_and_changelog_together(committed: Path) -> None:
    (committed / "uv.lock").write_text(LOCK)
    commit_all(committed)
    apply(committed, plan(committed, "agents", "0.2.0", "2026-01-02"))
    assert version_problems(committed) == []
    assert current_version(committed, "agents") == "0.2.0"
    assert current_version(committed, "engine") == "0.1.0"
    adapter = (committed / "packages/agents/adapter/pyproject.toml").read_text()
    assert '"core[embedded]==0.2.0"' in adapter
    assert '"framework>=3"' in adapter
    assert (committed / "uv.lock").read_text() == LOCK.replace("0.1.0", "0.2.0", 2)
    assert "## agents 0.2.0 - 2026-01-02\n" in (committed / "CHANGELOG.md").read_text()
    assert not (committed / "changes/agents.added.all-of-it.md").exists()
    assert (committed / "changes/engine.added.all-of-it.md").exists()


@pytest.mark.parametrize(
    ("version", "requirement"),
    [
        ("0.1.7", "engine>=0.1,<0.2"),
        ("0.2.0", "engine>=0.2,<0.3"),
        ("0.2.1", "engine>=0.2.1,<0.3"),
        ("1.4.0", "engine>=1.4,<2"),
        ("0.3.0rc1", "engine>=0.3.0rc1,<0.4"),
    ],
)
def test_the_range_of_another_group_moves_only_when_it_has_to(
    committed: Path, version: str, requirement: str
) -> None:
    apply(committed, plan(committed, "engine", version, "2026-01-02"))
    assert f'"{requirement}"' in (committed / "packages/agents/core/pyproject.toml").read_text()
    assert version_problems(committed) == []


def test_the_first_release_keeps_the_version_and_the_second_of_it_is_refused(
    committed: Path,
) -> None:
    apply(committed, plan(committed, "engine", "0.1.0", "2026-01-02"))
    assert version_problems(committed) == []
    commit_all(committed)
    write_fragment(committed, "engine.fixed.more", "More.")
    with pytest.raises(ToolError, match=r"already holds engine 0\.1\.0"):
        plan(committed, "engine", "0.1.0", "2026-01-03")


@pytest.mark.parametrize(
    ("group", "version", "problem"),
    [
        ("agents", "0.0.9", "is older"),
        ("agents", "one", "not a valid version"),
        ("agents", "", "not a valid version"),
        ("other", "0.2.0", "is no version group; there are agents, engine"),
    ],
)
def test_a_version_that_cannot_be_is_refused(
    committed: Path, group: str, version: str, problem: str
) -> None:
    with pytest.raises(ToolError, match=problem):
        plan(committed, group, version, "2026-01-02")


def test_a_version_that_changes_nothing_for_users_is_refused(committed: Path) -> None:
    (committed / "changes/agents.added.all-of-it.md").unlink()
    with pytest.raises(ToolError, match="no fragment in changes/"):
        plan(committed, "agents", "0.2.0", "2026-01-02")


def test_a_lock_that_lacks_the_package_is_refused(committed: Path) -> None:
    (committed / "uv.lock").write_text("version = 1\n")
    with pytest.raises(ToolError, match=r"uv\.lock has no entry for core"):
        plan(committed, "agents", "0.2.0", "2026-01-02")


def test_a_dirty_tree_is_refused_and_nothing_is_written(committed: Path) -> None:
    (committed / "new.txt").touch()
    change = plan(committed, "agents", "0.2.0", "2026-01-02")
    with pytest.raises(ToolError, match=r"commit or remove them first:\n\?\? new\.txt"):
        apply(committed, change)
    assert current_version(committed, "agents") == "0.1.0"


def test_the_diff_names_every_file_and_the_lines(committed: Path) -> None:
    diff = diff_of(committed, plan(committed, "engine", "0.2.0", "2026-01-02"))
    assert "--- packages/engine/embedded/pyproject.toml\n" in diff
    assert '-version = "0.1.0"\n+version = "0.2.0"\n' in diff
    assert "--- changes/engine.added.all-of-it.md\n+++ gone\n" in diff


@pytest.mark.usefixtures("inside")
def test_the_commands_show_by_default_and_write_when_told(
    committed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["versions", "bump", "agents", "minor"], root=committed) == 0
    shown = capsys.readouterr()
    assert '+version = "0.2.0"' in shown.out
    assert "add --write" in shown.err
    assert current_version(committed, "agents") == "0.1.0"
    assert main(["versions", "bump", "agents", "minor", "--write"], root=committed) == 0
    assert current_version(committed, "agents") == "0.2.0"
    commit_all(committed)
    assert main(["versions", "set", "engine", "0.1.0", "--write"], root=committed) == 0
    assert main(["versions", "check"], root=committed) == 0


@pytest.mark.usefixtures("inside")
def test_a_broken_pin_fails_the_check_command_and_tables_can_be_rewritten(
    committed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = committed / "packages/agents/adapter/pyproject.toml"
    path.write_text(path.read_text().replace("==0.1.0", "==0.0.1"))
    assert main(["versions", "check"], root=committed) == 1
    assert "must pin core==0.1.0 exactly" in capsys.readouterr().err
    assert main(["versions", "tables"], root=committed) == 0
    listed = ["README.md", "packages/agents/adapter/README.md"]
    assert capsys.readouterr().out.splitlines() == listed
    assert main(["versions", "tables", "--write"], root=committed) == 0
    capsys.readouterr()
    assert main(["versions", "tables"], root=committed) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("inside")
def test_the_changelog_command_shows_what_is_not_released(
    committed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["changelog", "engine"], root=committed) == 0
    assert capsys.readouterr().out.startswith("## engine 0.1.0 - unreleased\n\n### Added\n")
    assert main(["changelog", "other"], root=committed) == 1
    assert "is no version group" in capsys.readouterr().err
