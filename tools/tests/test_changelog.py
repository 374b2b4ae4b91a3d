from __future__ import annotations

from pathlib import Path

import pytest
from workspace_trees import write_fragment

from tools.changelog import (
    changelog_problems,
    read_fragments,
    read_sections,
    release_notes,
    section_text,
    with_section,
)
from tools.errors import ToolError

VERSIONS = {"agents": "0.1.0", "engine": "0.1.0"}
HEAD = "# Changelog\n\nWhat changed.\n"


def write_changelog(root: Path, *headings: str) -> None:
    sections = [f"## {heading}\n\n- Something.\n" for heading in headings]
    (root / "CHANGELOG.md").write_text("\n".join([HEAD, *sections]))


def test_a_section_lists_the_kinds_in_order_and_indents_what_is_long(workspace: Path) -> None:
    write_fragment(workspace, "agents.fixed.b", "One line.")
    write_fragment(workspace, "agents.security.a", "First line\nand second.")
    fragments, problems = read_fragments(workspace, VERSIONS)
    own = [fragment for fragment in fragments if fragment.group == "agents"]
    assert problems == []
    assert section_text("agents", "0.1.0", "2026-01-02", own) == (
        "## agents 0.1.0 - 2026-01-02\n\n"
        "### Security\n\n- First line\n  and second.\n\n"
        "### Added\n\n- Everything is new.\n\n"
        "### Fixed\n\n- One line.\n"
    )


def test_a_new_section_stands_above_the_others() -> None:
    first = with_section(HEAD, "## agents 0.1.0 - 2026-01-02\n\n- One.\n")
    second = with_section(first, "## engine 0.1.0 - 2026-01-03\n\n- Two.\n")
    assert second == (
        "# Changelog\n\nWhat changed.\n\n"
        "## engine 0.1.0 - 2026-01-03\n\n- Two.\n\n"
        "## agents 0.1.0 - 2026-01-02\n\n- One.\n"
    )
    assert [section.group for section in read_sections(second)] == ["engine", "agents"]
    assert release_notes(second, "engine", "0.1.0") == "- Two.\n"
    assert release_notes(second, "agents", "0.1.0") == "- One.\n"


def test_notes_of_a_release_that_is_not_there_say_how_to_write_it() -> None:
    with pytest.raises(ToolError, match=r"versions set agents 0\.2\.0"):
        release_notes(HEAD, "agents", "0.2.0")


@pytest.mark.parametrize("name", ["Agents.added.x", "agents.new.x", "other.added.x", "agents.x"])
def test_a_fragment_whose_name_says_too_little_is_a_problem(workspace: Path, name: str) -> None:
    write_fragment(workspace, name, "Something.")
    (problem,) = changelog_problems(workspace, VERSIONS)
    assert problem.startswith(f"changes/{name}.md: name it GROUP.KIND.few-words.md")


@pytest.mark.parametrize("text", ["", "# A heading", "- An item"])
def test_a_fragment_that_is_not_plain_sentences_is_a_problem(workspace: Path, text: str) -> None:
    write_fragment(workspace, "agents.added.x", text)
    (problem,) = changelog_problems(workspace, VERSIONS)
    assert "plain sentences" in problem


def test_the_page_that_explains_fragments_is_none(workspace: Path) -> None:
    (workspace / "changes/README.md").write_text("# How to\n")
    assert changelog_problems(workspace, VERSIONS) == []


def test_a_version_that_nothing_describes_is_a_problem(workspace: Path) -> None:
    (workspace / "changes/engine.added.all-of-it.md").unlink()
    (problem,) = changelog_problems(workspace, VERSIONS)
    assert "nothing says what engine 0.1.0 changes" in problem
    write_changelog(workspace, "engine 0.1.0 - 2026-01-02")
    assert changelog_problems(workspace, VERSIONS) == []


@pytest.mark.parametrize(
    ("headings", "problem"),
    [
        (["agents 0.2.0 - 2026-01-02"], "agents 0.2.0 is newer than 0.1.0 in the pyprojects"),
        (["other 0.1.0 - 2026-01-02"], "other is no version group"),
        (["agents one - 2026-01-02"], "'one' is not a valid version"),
        (["agents 0.0.1 - 2026-01-02", "agents 0.0.2 - 2026-01-01"], "newer releases come first"),
        (["agents 0.0.1 - 2026-01-02", "agents 0.0.1 - 2026-01-01"], "newer releases come first"),
        (["Unreleased"], "write the heading as"),
    ],
)
def test_a_changelog_that_does_not_fit_is_a_problem(
    workspace: Path, headings: list[str], problem: str
) -> None:
    write_changelog(workspace, *headings)
    (found,) = changelog_problems(workspace, VERSIONS)
    assert problem in found


def test_a_missing_changelog_is_a_problem(workspace: Path) -> None:
    (workspace / "CHANGELOG.md").unlink()
    assert changelog_problems(workspace, VERSIONS) == [
        "CHANGELOG.md does not exist; write one with a title"
    ]
