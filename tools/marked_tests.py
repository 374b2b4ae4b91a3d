"""Lists of sentences, each held by tests that name it: read, compared both ways, written as a page.

A test names what it holds by a marker, `@pytest.mark.MARKER("ID", ...)`. Markers are read from the
source, so nothing is imported or collected. What a list says beside its ids is its own matter.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def marked_tests(tests: Path, marker: str) -> dict[str, tuple[str, ...]]:
    """Return the ids that each test names, by `path::name`; tests without the marker are absent.

    Args:
        tests: Folder of the tests; paths are relative to it.
        marker: Name of the marker.

    Raises:
        ValueError: An id is not written as plain text, so it cannot be read from the source.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, function in _test_functions(tests):
        ids = [i for node in function.decorator_list for i in _ids(node, marker, name)]
        if ids:
            found[name] = tuple(ids)
    return found


def names_of_tests(tests: Path) -> set[str]:
    """Return all tests of a folder as `path::name`."""
    return {name for name, _ in _test_functions(tests)}


def holders_by_id(marked: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Return the tests of each id that a marker names."""
    holders: dict[str, set[str]] = {}
    for test, ids in marked.items():
        for named in ids:
            holders.setdefault(named, set()).add(test)
    return holders


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; a bar inside a cell is escaped."""
    written = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in (head, *rows)]
    lines = [f"| {line} |" for line in written]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def cell_of_tests(tests: Sequence[str]) -> str:
    """Return the cell that names tests."""
    return "<br>".join(f"`{test}`" for test in tests) or "**none yet**"


def keep_page(
    page: Path, text: str, problems: Sequence[str], arguments: Sequence[str] | None
) -> int:
    """Write the page or compare it, as the command line says; return the exit code.

    Args:
        page: Where the page stands.
        text: What it has to say.
        problems: What does not fit between the list and the tests; with any, nothing is written.
        arguments: Command line; that of the process for `None`.
    """
    parser = argparse.ArgumentParser(description=f"Checks {page.name} against the tests.")
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args(arguments)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    if options.write:
        page.write_text(text, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != text:
        print(f"{page.name} is not up to date; run this with --write", file=sys.stderr)
        return 1
    return 0


def _test_functions(tests: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sorted(tests.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                yield f"{path.relative_to(tests).as_posix()}::{node.name}", node


def _ids(decorator: ast.expr, marker: str, test: str) -> list[str]:
    if not (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr == marker
    ):
        return []
    ids: list[str] = []
    for argument in decorator.args:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise ValueError(f"{test} names what it holds by something else than plain text")
        ids.append(argument.value)
    return ids
