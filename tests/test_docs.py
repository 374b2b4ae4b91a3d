"""What the fences of pages say, and the commands that pages name. `pages/` runs their code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cli import parser
from tools.docs.blocks import block_problems, command_problems, pages
from tools.rules.workflows import takes

ROOT = Path(__file__).resolve().parent.parent
PAGES = pages(ROOT)
ACCEPTS = takes(parser().parse_args)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_blocks_of_a_page_are_marked_and_parse(page: Path) -> None:
    assert block_problems(ROOT, page) == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_commands_that_a_page_names_exist(page: Path) -> None:
    assert command_problems(ROOT, page, ACCEPTS) == []
