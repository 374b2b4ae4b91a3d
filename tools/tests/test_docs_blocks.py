from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cli import parser
from tools.docs.blocks import (
    block_problems,
    command_problems,
    model_script,
    pages,
    read_blocks,
    runnable,
)
from tools.rules.workflows import takes
from tools.workspace import REPOSITORY_ROOT

PAGE = Path("page.md")


def problems_of(root: Path, fence: str, code: str = "x = 1") -> list[str]:
    (root / PAGE).write_text(f"# A page\n\n```{fence}\n{code}\n```\n")
    return block_problems(root, PAGE)


def run_page(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    page = folder / "page.md"
    page.write_text(text)
    work = folder / "work"
    work.mkdir()
    return subprocess.run(
        [sys.executable, "-m", "tools.docs.run_page", page],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY_ROOT), "OPENAI_API_KEY": "a real key"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_blocks_carry_their_line_their_info_and_their_unindented_code() -> None:
    text = "1. do\n\n   ```python no-run: it is slow\n   if x:\n       y()\n   ```\n"
    text += "\n~~~~\n```\n~~~~\n"
    first, second = read_blocks(text)
    assert (first.line, first.info) == (4, "python no-run: it is slow")
    assert first.code == "if x:\n    y()\n"
    assert (second.language, second.code) == ("", "```\n")


def test_only_python_without_a_mark_is_run() -> None:
    fences = ["python", "python no-run: it is slow", "python file=a.py", "sh", ""]
    text = "\n".join(f"```{fence}\nx = {n}\n```" for n, fence in enumerate(fences))
    assert [block.code for block in runnable(text)] == ["x = 0\n"]


@pytest.mark.parametrize(
    ("fence", "code"),
    [
        ("python", "await sleep(1)"),
        ("python no-run: it needs a cluster", "async with open() as x: ..."),
        ("python file=real.py", "def real():\n    return 1"),
        ("sh", "this is ) not python"),
    ],
)
def test_a_block_that_is_marked_well_is_no_problem(tmp_path: Path, fence: str, code: str) -> None:
    (tmp_path / "real.py").write_text("import x\n\n\ndef real():\n    return 1\n")
    assert problems_of(tmp_path, fence, code) == []


@pytest.mark.parametrize(
    ("fence", "code", "problem"),
    [
        ("python", "x = (", "it does not parse"),
        ("python no-run: too slow", "x = 1", "a reason of three words or more"),
        ("python no-run", "x = 1", "say nothing, `no-run: REASON`"),
        ("python norun: it is slow", "x = 1", "say nothing, `no-run: REASON`"),
        ("py", "x = 1", "write `python` instead of `py`"),
        ("python file=gone.py", "x = 1", "gone.py does not exist"),
        ("python file=real.py", "x = 2", "it does not stand in real.py like this"),
    ],
)
def test_a_block_that_would_escape_its_test_is_a_problem_at_its_line(
    tmp_path: Path, fence: str, code: str, problem: str
) -> None:
    (tmp_path / "real.py").write_text("x = 1\n")
    (found,) = problems_of(tmp_path, fence, code)
    assert found.startswith("page.md:4: ")
    assert problem in found


def test_a_model_script_is_looked_up_beside_the_page(tmp_path: Path) -> None:
    text = "<!-- docs-test: model-script=scripts/a.json -->\n"
    (tmp_path / PAGE).write_text(text)
    assert model_script(tmp_path / PAGE, text) == (tmp_path / "scripts/a.json").resolve()
    (problem,) = block_problems(tmp_path, PAGE)
    assert problem == "page.md: its model-script a.json does not exist"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("make test", None),
        ('make lock ARGS="--upgrade-package x"  # why', None),
        ("$ python3 -m tools discover --json", None),
        ("python3 -m tools versions bump GROUP PART --write", None),
        ("make lock test PYTHON=python3.13", None),
        ("make tset", "page.md:4: the Makefile has no verb tset"),
        ("python3 -m tools discver", "page.md:4: tools takes no `discver`"),
    ],
)
def test_a_command_that_does_not_exist_is_a_problem(
    tmp_path: Path, line: str, problem: str | None
) -> None:
    (tmp_path / "Makefile").write_text("test:\n\ttrue\nlock:\n\ttrue\n")
    problems_of(tmp_path, "", line)
    found = command_problems(tmp_path, PAGE, takes(parser().parse_args))
    assert found == ([] if problem is None else [problem])


def test_blocks_run_in_order_in_one_namespace_and_may_await(tmp_path: Path) -> None:
    text = """
```python
import asyncio, dataclasses, os, typing

@dataclasses.dataclass
class Thing:
    other: "Thing | None"

assert typing.get_type_hints(Thing)
assert "OPENAI_API_KEY" not in os.environ
```

```python
async def give() -> int:
    return 7
number = await give()
lock = asyncio.Lock()
```

```python
async with lock:
    assert number == 7
```

```python
if __name__ == "__main__":
    print(asyncio.run(give()))
```
"""
    done = run_page(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "7\n4 blocks ran\n"


def test_a_block_that_fails_names_the_line_of_the_page(tmp_path: Path) -> None:
    done = run_page(tmp_path, "# A page\n\n```python\nx = 1\nassert x == 2\n```\n")
    assert done.returncode != 0
    assert 'page.md", line 5' in done.stderr


def test_a_page_can_talk_to_a_scripted_model(tmp_path: Path) -> None:
    script = {"turns": [{"replies": [{"text": "hello"}]}]}
    (tmp_path / "model.json").write_text(json.dumps(script))
    text = """
<!-- docs-test: model-script=model.json -->

```python
import json, os, urllib.request

request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    data=json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode(),
    headers={"Content-Type": "application/json"},
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
```
"""
    done = run_page(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["hello", "1 blocks ran"]


def test_pages_are_all_markdown_files_that_git_knows() -> None:
    found = [page.as_posix() for page in pages(REPOSITORY_ROOT)]
    assert {"README.md", "CONTRIBUTING.md", "packages/agents/core/README.md"} <= set(found)
