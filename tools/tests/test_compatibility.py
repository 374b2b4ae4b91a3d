from __future__ import annotations

from pathlib import Path

import pytest
from workspace_trees import GOOD_README, write_tables

from tools.compatibility import BEGIN, END, table_of, with_table
from tools.errors import ToolError
from tools.versions import version_problems
from tools.workspace import read_members


def test_a_table_says_what_the_pyprojects_say(workspace: Path) -> None:
    assert table_of(read_members(workspace)).splitlines() == [
        "| Package | Version | Python | Needs |",
        "| --- | --- | --- | --- |",
        "| `engine` | 0.1.0 | >=3.11 |  |",
        "| `core` | 0.1.0 | >=3.11 | with `[embedded]`: `engine>=0.1,<0.2` |",
        "| `adapter` | 0.1.0 | >=3.11 | `core[embedded]==0.1.0`, `framework>=3` |",
    ]


def test_only_what_stands_between_the_comments_is_replaced() -> None:
    text = with_table(GOOD_README + "The end.\n", "| a |")
    assert text == f"# A title\n\n{BEGIN}\n\n| a |\n\n{END}\nThe end.\n"
    assert with_table(text, "| a |") == text


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{END}" * 2])
def test_a_readme_without_one_place_for_the_table_is_refused(text: str) -> None:
    with pytest.raises(ToolError, match="put the lines"):
        with_table(text, "| a |")


@pytest.mark.parametrize("readme", ["README.md", "packages/agents/core/README.md"])
def test_a_table_that_says_something_else_is_a_problem_until_it_is_written(
    workspace: Path, readme: str
) -> None:
    path = workspace / readme
    path.write_text(path.read_text().replace("0.1.0", "0.0.9"))
    (problem,) = version_problems(workspace)
    assert problem.startswith(f"{readme}: the compatibility table is out of date; run `python3")
    write_tables(workspace)
    assert version_problems(workspace) == []


def test_a_missing_readme_and_a_missing_place_are_problems_that_name_the_file(
    workspace: Path,
) -> None:
    (workspace / "README.md").write_text("# A title\n")
    (workspace / "packages/agents/core/README.md").unlink()
    first, second = version_problems(workspace)
    assert first.startswith("README.md: put the lines")
    assert second.startswith("packages/agents/core/README.md does not exist")
