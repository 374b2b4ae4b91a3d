"""The code of the pages runs. Takes a while, so `make test` does it and `make check` does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.docs.blocks import pages, runnable

ROOT = Path(__file__).resolve().parent.parent.parent
WITH_CODE = [page for page in pages(ROOT) if runnable((ROOT / page).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", WITH_CODE, ids=str)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs.run_page", ROOT / page],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, f"{page}:\n{done.stdout}\n{done.stderr}"
