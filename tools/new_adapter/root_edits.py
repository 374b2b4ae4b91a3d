"""What a new adapter package changes in files that speak of all packages."""

from __future__ import annotations

import re
from pathlib import Path

from tools.errors import ToolError
from tools.new_adapter.files import Adapter

_CORE_TESTS = "packages/agents/core/tests"


def edited_files(root: Path, adapter: Adapter) -> dict[Path, str]:
    """Return the new text of every file that names all packages, by its path relative to the root.

    Raises:
        ToolError: A file does not have the place where the adapter belongs.
    """
    project = Path("pyproject.toml")
    imports = Path("tools/rules/imports.py")
    docs = Path("docs/README.md")
    return {
        project: _project(root, project, adapter),
        imports: _after(
            root,
            imports,
            r"^    CORE: frozenset\[str\]\(\),\n",
            f'    "{adapter.module}": frozenset({{CORE}}),\n',
        ),
        docs: _after(
            root,
            docs,
            r"^\| write a runner for .*\n",
            adapter.filled("| use @TITLE@ | [@TITLE@](adapters/@NAME@.md) |\n"),
        ),
    }


def _project(root: Path, path: Path, adapter: Adapter) -> str:
    text = _read(root, path)
    tests = f"{adapter.folder}/tests"
    edits = (
        (
            r"^dex-agents = \{ workspace = true \}\n",
            f"{adapter.distribution} = {{ workspace = true }}\n",
        ),
        (r'^agents = \["dex-agents"', f', "{adapter.distribution}"'),
        (r'^    "dex_agents",\n', f'    "{adapter.module}",\n'),
        (rf'^    "{_CORE_TESTS}",\n', f'    "{tests}",\n'),
    )
    for anchor, added in edits:
        text = _insert(text, path, anchor, added)
    environment = re.search(rf'^    \{{ root = "{_CORE_TESTS}".*\n', text, re.MULTILINE)
    if environment is None:
        raise ToolError(f"{path} has no pyright environment of {_CORE_TESTS} to copy")
    line = environment.group()
    return text.replace(line, line + line.replace(_CORE_TESTS, tests))


def _after(root: Path, path: Path, anchor: str, added: str) -> str:
    return _insert(_read(root, path), path, anchor, added)


def _insert(text: str, path: Path, anchor: str, added: str) -> str:
    """Add text after every match of an anchor."""
    changed, count = re.subn(anchor, lambda match: match.group() + added, text, flags=re.MULTILINE)
    if not count:
        raise ToolError(f"{path} has no line like `{anchor}`, after which the adapter belongs")
    return changed


def _read(root: Path, path: Path) -> str:
    try:
        return (root / path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ToolError(f"{path} does not exist, and an adapter has to be named there") from error
