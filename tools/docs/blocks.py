"""The code blocks of a Markdown page, and what their fences say about testing them.

A block of Python is run, after the blocks above it on the same page and in the same namespace. What
follows `python` on the fence can say otherwise:

- `python no-run: REASON` is only parsed; the reason tells the reader of the source why.
- `python file=PATH` has to stand in that file, word for word; the file has tests of its own.

A page whose code calls a model names a script for the scripted model server in a comment on a line
of its own: `<!-- docs-test: model-script=PATH -->`. Paths are relative to the page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tools.rules.tracked import tracked_files
from tools.rules.workflows import Accepts

PYTHON = "python"

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
_OTHER_NAMES = ("py", "python3", "pycon")
_NO_RUN = re.compile(r"no-run: (?P<reason>\S+ \S+ \S+.*)")
_FILE = re.compile(r"file=(?P<path>\S+)")
_MODEL_SCRIPT = re.compile(r"^<!-- docs-test: model-script=(?P<path>\S+) -->$", re.MULTILINE)
_COMMAND = re.compile(r"^(?:\$ )?(?P<line>(?:make|python3 -m tools)(?: [^#|&;<>]*)?)(?:#.*)?$")


class Treatment(Enum):
    """What is done with a block."""

    RUN = "run"
    PARSE = "parse"
    COMPARE = "compare"


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        line: Line of its first line of code, from 1.
        info: What follows the fence.
        code: Its text without the indentation of its fence.
    """

    line: int
    info: str
    code: str

    @property
    def language(self) -> str:
        """The first word on the fence; empty where there is none."""
        return self.info.split(" ")[0]

    def treatment(self) -> Treatment | None:
        """What is done with a block of Python, or None where its fence says something unknown."""
        rest = self.info.removeprefix(PYTHON).strip()
        if not rest:
            return Treatment.RUN
        if _NO_RUN.fullmatch(rest):
            return Treatment.PARSE
        return Treatment.COMPARE if _FILE.fullmatch(rest) else None

    def file(self) -> str:
        """The path on the fence of a block that is compared."""
        match = _FILE.search(self.info)
        return match["path"] if match else ""


def pages(root: Path) -> list[Path]:
    """Return every Markdown page of the repository, relative to it, that users or authors read."""
    return [path for path in tracked_files(root) if path.suffix == ".md"]


def read_blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page; one that is never closed ends with the page."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        number += 1
        if opening is None:
            continue
        start = number
        fence, indent = opening["fence"], opening["indent"]
        while number < len(lines) and lines[number].strip() != fence:
            number += 1
        code = "\n".join(line.removeprefix(indent) for line in lines[start:number])
        yield Block(start + 1, opening["info"].strip(), code + "\n")
        number += 1


def runnable(text: str) -> list[Block]:
    """Return the blocks of a page that are run, in order."""
    return [
        block
        for block in read_blocks(text)
        if block.language == PYTHON and block.treatment() is Treatment.RUN
    ]


def model_script(page: Path, text: str) -> Path | None:
    """Return the script for the model server that a page names, if it names one."""
    match = _MODEL_SCRIPT.search(text)
    return (page.parent / match["path"]).resolve() if match else None


def block_problems(root: Path, page: Path) -> list[str]:
    """Return what is wrong with the blocks of a page before any of them runs."""
    text = (root / page).read_text(encoding="utf-8")
    problems: list[str] = []
    for block in read_blocks(text):
        problem = _problem(root / page, block)
        if problem is not None:
            problems.append(f"{page}:{block.line}: {problem}")
    script = model_script(root / page, text)
    if script is not None and not script.is_file():
        problems.append(f"{page}: its model-script {script.name} does not exist")
    return problems


def command_problems(root: Path, page: Path, accepts: Accepts) -> list[str]:
    """Return the commands in a page's blocks that do not exist.

    Args:
        root: The repository.
        page: The page, relative to it.
        accepts: Says whether `python3 -m tools` takes some arguments.
    """
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    verbs = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    text = (root / page).read_text(encoding="utf-8")
    problems: list[str] = []
    for block in read_blocks(text):
        if block.language not in ("", "sh", "bash", "console"):
            continue
        for offset, line in enumerate(block.code.splitlines()):
            match = _COMMAND.match(line)
            if match is None:
                continue
            program, *arguments = match["line"].split()
            where = f"{page}:{block.line + offset}"
            if program == "make":
                named = [word for word in arguments if re.fullmatch("[a-z]+", word)]
                problems += [
                    f"{where}: the Makefile has no verb {verb}"
                    for verb in named
                    if verb not in verbs and '"' not in match["line"].partition(verb)[0]
                ]
            elif not any(word.isupper() for word in arguments) and not accepts(arguments[2:]):
                problems.append(f"{where}: tools takes no `{' '.join(arguments[2:])}`")
    return problems


def _problem(page: Path, block: Block) -> str | None:
    if block.language in _OTHER_NAMES:
        return f"write `{PYTHON}` instead of `{block.language}`, so that the block is tested"
    if block.language != PYTHON:
        return None
    treatment = block.treatment()
    if treatment is None:
        return (
            f"`{block.info}`: say nothing, `no-run: REASON` with a reason of three words or more, "
            "or `file=PATH`"
        )
    if treatment is Treatment.COMPARE:
        path = page.parent / block.file()
        if not path.is_file():
            return f"{block.file()} does not exist"
        if block.code.strip() not in path.read_text(encoding="utf-8"):
            return f"it does not stand in {block.file()} like this; copy it from there again"
        return None
    try:
        compile(block.code, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    except SyntaxError as error:
        return f"it does not parse: {error}"
    return None
