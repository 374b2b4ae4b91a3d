from __future__ import annotations

from pathlib import Path

import pytest

from tools.cli import parser
from tools.errors import ToolError
from tools.rules.workflows import takes, weaknesses, workflow_problems
from tools.workspace import REPOSITORY_ROOT

GOOD = f"""
name: Good
on: push
permissions:
  contents: read
jobs:
  one:
    runs-on: ubuntu-latest
    timeout-minutes: 5
    steps:
      - uses: actions/checkout@{"1" * 40} # v4.2.2
        with:
          persist-credentials: false
      - run: make test
      - run: make lock ARGS="--upgrade"
      - run: python3 -m tools smoke --python "$VERSION"
      - run: bash "$SCRIPT"
"""


def problems_of(root: Path, text: str) -> list[str]:
    folder = root / ".github/workflows"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.yml").write_text(text)
    (root / "Makefile").write_text("test: ## run\n\ttrue\nlock:\n\ttrue\n")
    return workflow_problems(root, takes(parser().parse_args))


def test_a_good_workflow_has_no_problem(tmp_path: Path) -> None:
    assert problems_of(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (f"@{'1' * 40} # v4.2.2", "@v4", "a.yml:11: pin the action"),
        (" # v4.2.2", "", "a.yml:11: pin the action"),
        ("permissions:\n  contents: read\n", "", "set `permissions` at the top"),
        ("permissions:\n  contents: read\n", "permissions: write-all\n", "set `permissions`"),
        ("    timeout-minutes: 5\n", "", "one: set `timeout-minutes`"),
        ("persist-credentials: false", "fetch-depth: 0", "persist-credentials: false"),
        ("run: make test", "run: make tests", "the Makefile has no verb tests"),
        ("run: make test", "run: make test && rm -rf dist", "cannot be tried elsewhere"),
        (
            "run: make test",
            "run: |\n          make test\n          ls",
            "cannot be tried elsewhere",
        ),
        ("run: make test", "run: python3 -m tools discoverr", "takes no such arguments"),
        ("run: make test", "run: python3 -m tools smoke --pyton 3.11", "takes no such arguments"),
        ("run: make test", "run: python3 -m tools sync ${{ a }}", "with values through `env`"),
        ("run: make test", "run: pip install x", "run a verb of the Makefile"),
    ],
)
def test_a_workflow_that_breaks_a_rule_is_a_problem(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert old in GOOD
    found = problems_of(tmp_path, GOOD.replace(old, new))
    assert len(found) == 1
    assert problem in found[0]


@pytest.mark.parametrize("text", ["[", "text", "name: x"])
def test_what_is_no_workflow_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ToolError, match=r"\.github/workflows/a\.yml"):
        problems_of(tmp_path, text)


def test_a_repository_without_workflows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no workflows"):
        workflow_problems(tmp_path, lambda _: True)


def test_a_known_weakness_is_found_by_name(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(REPOSITORY_ROOT / ".venv")
    unsafe = GOOD.replace("run: make test", 'run: echo "${{ github.event.issue.title }}"')
    problems_of(tmp_path, unsafe.replace("on: push", "on: issues"))
    assert "template-injection" in weaknesses(tmp_path)
    problems_of(tmp_path, GOOD)
    assert weaknesses(tmp_path) == ""
