from __future__ import annotations

import ast
from pathlib import Path

import dex_embedded._kernel

ALLOWED = {
    "__future__",
    "collections",
    "dataclasses",
    "dex_embedded",
    "enum",
    "math",
    "operator",
    "typing",
}


def test_the_kernel_imports_nothing_that_could_reach_the_outside_world() -> None:
    folder = Path(dex_embedded._kernel.__file__).parent
    imported: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
    assert {name.split(".")[0] for name in imported} <= ALLOWED
    ours = {name for name in imported if name.startswith("dex_embedded")}
    assert all(name.startswith("dex_embedded._kernel") for name in ours)
