"""The package of a new adapter passes every check, and fails only where code is still missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.discover import discover
from tools.errors import ToolError
from tools.new_adapter.commands import write_adapter
from tools.rules.imports import ARROWS, import_problems
from tools.rules.tracked import content_problems, tracked_files
from tools.versions import version_problems

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "other-agents"
FOLDER = f"packages/agents/{NAME}"
MODULE = "dex_agents_other_agents"
METHODS = ("build_user_message", "run_model_step", "execute_deferred_tool_call")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this workspace in which an adapter was written."""
    root = tmp_path_factory.mktemp("workspace")
    for path in tracked_files(ROOT):
        if (ROOT / path).is_file():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, root / path)
    write_adapter(root, NAME)
    return root


def run(copy: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment in the copy, where the new package can be imported."""
    return subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / FOLDER / "src")},
        capture_output=True,
        text=True,
        timeout=150,
    )


def test_ci_discovers_it(copy: Path) -> None:
    assert f"{FOLDER}/ci.sh" in [job.script for job in discover(copy)]


def test_versions_pins_tables_and_the_changelog_agree(copy: Path) -> None:
    assert version_problems(copy) == []


def test_its_imports_follow_the_arrows(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = (copy / "tools/rules/imports.py").read_text(encoding="utf-8")
    assert f'    "{MODULE}": frozenset({{CORE}}),\n' in rules
    monkeypatch.setitem(ARROWS, MODULE, frozenset({"dex_agents"}))
    assert import_problems(copy) == []


def test_it_is_linted_clean_and_names_no_machine(copy: Path) -> None:
    written = [path.relative_to(copy) for path in (copy / FOLDER).rglob("*") if path.is_file()]
    assert len(written) == 10
    assert content_problems(copy, written) == []
    targets = [FOLDER, "tools/rules", f"tools/smoke/programs/use_{MODULE}.py"]
    for arguments in (("check",), ("format", "--check")):
        done = run(copy, "ruff", *arguments, "--no-cache", *targets)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["a", "zz9", "a-name-that-is-rather-long-x"])
def test_other_names_are_linted_clean_too(tmp_path: Path, name: str) -> None:
    for path in ("pyproject.toml", "tools/rules/imports.py", "docs/README.md", "README.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    for path in ("pyproject.toml", "README.md", "ci.sh", "LICENSE"):
        core = Path("packages/agents/core") / path
        (tmp_path / core).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / core, tmp_path / core)
    adapter = write_adapter(tmp_path, name)
    for arguments in (("check",), ("format", "--check")):
        done = run(tmp_path, "ruff", *arguments, "--no-cache", adapter.folder)
        assert done.returncode == 0, done.stdout


def test_it_type_checks_under_strict_rules(copy: Path) -> None:
    project = (copy / "pyproject.toml").read_text(encoding="utf-8")
    # The package is not installed here, so its sources are named instead.
    found = project.replace("extraPaths = [", f'extraPaths = [\n    "{FOLDER}/src",', 1)
    (copy / "pyproject.toml").write_text(found, encoding="utf-8")
    done = run(copy, "pyright", "--pythonpath", sys.executable, FOLDER)
    (copy / "pyproject.toml").write_text(project, encoding="utf-8")
    assert done.returncode == 0, done.stdout


def test_it_fails_only_where_code_is_missing_and_says_where(copy: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "--tb=no"]
    first = run(copy, "pytest", *options, "-k", "user_message or model", f"{FOLDER}/tests")
    failed = [line for line in first.stdout.splitlines() if re.match(r"  \S+ +failed ", line)]
    assert len(failed) >= 7, first.stdout
    assert all("agent_double is to be written" in line for line in failed), first.stdout

    test = copy / FOLDER / "tests/test_other_agents_conformance.py"
    text = test.read_text(encoding="utf-8")
    written = re.sub(
        r"    raise NotImplementedError\(.*?\n    \)", "    return stage", text, flags=re.S
    )
    test.write_text(written, encoding="utf-8")
    second = run(copy, "pytest", *options, "-k", "user_message", test.as_posix())
    test.write_text(text, encoding="utf-8")
    assert "OtherAgentsRunner.build_user_message is to be written" in second.stdout


@pytest.mark.parametrize("method", METHODS)
def test_each_method_that_is_missing_names_itself(copy: Path, method: str) -> None:
    source = (copy / FOLDER / "src" / MODULE / "runner.py").read_text(encoding="utf-8")
    body = source.partition(f"def {method}(")[2].partition("    def ")[0].partition("async def")[0]
    assert f"OtherAgentsRunner.{method} is to be written" in body


@pytest.mark.parametrize("name", ["", "Other", "other_agents", "-x", "x--y", "7up", "x" * 29])
def test_a_name_that_cannot_be_used_is_refused_and_nothing_written(copy: Path, name: str) -> None:
    before = sorted(copy.rglob("*"))
    with pytest.raises(ToolError, match="is no name for an adapter"):
        write_adapter(copy, name)
    assert sorted(copy.rglob("*")) == before


def test_a_package_that_exists_is_not_overwritten(copy: Path) -> None:
    with pytest.raises(ToolError, match="exists already"):
        write_adapter(copy, NAME)


def test_a_workspace_without_the_place_for_adapters_is_left_alone(workspace: Path) -> None:
    before = {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()}
    with pytest.raises(ToolError, match="has no package dex-agents"):
        write_adapter(workspace, NAME)
    assert {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()} == before
