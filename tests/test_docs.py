"""The pages' code: it runs, and the commands that pages name exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cli import parser
from tools.docs.blocks import block_problems, command_problems, pages, runnable
from tools.rules.workflows import takes

ROOT = Path(__file__).resolve().parent.parent
PAGES = pages(ROOT)
WITH_CODE = [page for page in PAGES if runnable((ROOT / page).read_text(encoding="utf-8"))]
ACCEPTS = takes(parser().parse_args)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_blocks_of_a_page_are_marked_and_parse(page: Path) -> None:
    assert block_problems(ROOT, page) == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_commands_that_a_page_names_exist(page: Path) -> None:
    assert command_problems(ROOT, page, ACCEPTS) == []


@pytest.mark.parametrize("page", WITH_CODE, ids=str)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs.run_page", ROOT / page],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, f"{page}:\n{done.stdout}\n{done.stderr}"
