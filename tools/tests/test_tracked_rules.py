from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.errors import ToolError
from tools.rules.tracked import INDEX_HOSTS, content_problems, tracked_files


def problems_of(root: Path, text: str | bytes) -> list[str]:
    file = root / "page.md"
    if isinstance(text, bytes):
        file.write_bytes(text)
    else:
        file.write_text(text)
    return content_problems(root, [Path("page.md")])


@pytest.mark.parametrize("host", INDEX_HOSTS)
def test_each_index_host_is_a_problem_at_its_line(tmp_path: Path, host: str) -> None:
    found = problems_of(tmp_path, f"first\nsee https://files.{host.upper()}/x\n")
    assert any(p.startswith(f"page.md:2: names the package index host {host}") for p in found)


@pytest.mark.parametrize("folder", ["work", "root", "home", "Users"])
def test_a_path_of_a_machine_is_a_problem(tmp_path: Path, folder: str) -> None:
    (found,) = problems_of(tmp_path, f'cd "/{folder}/someone/project"\n')
    assert found.startswith(f"page.md:1: names a path of one machine (/{folder}/s")


@pytest.mark.parametrize(
    "text",
    [
        "pip install dex-agents",
        "https://host.example/home/page and docs/work/notes and ~/work/x and ./root/x",
        "a home/work/life balance, and /homepage",
    ],
)
def test_ordinary_text_is_no_problem(tmp_path: Path, text: str) -> None:
    assert problems_of(tmp_path, text) == []


def test_binary_files_are_not_read_as_text(tmp_path: Path) -> None:
    assert problems_of(tmp_path, b"\0" + INDEX_HOSTS[0].encode()) == []


def test_files_that_git_would_add_count_and_ignored_ones_do_not(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for name in (".gitignore", "tracked.py", "new.py", "ignored.log"):
        (tmp_path / name).write_text("*.log\n" if name == ".gitignore" else "")
    subprocess.run(["git", "-C", tmp_path, "add", "tracked.py"], check=True)
    found = [path.as_posix() for path in tracked_files(tmp_path)]
    assert found == [".gitignore", "new.py", "tracked.py"]


def test_outside_a_repository_the_check_fails_instead_of_passing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(ToolError, match="needs git"):
        tracked_files(tmp_path)
