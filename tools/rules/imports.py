"""Which package may import which, and which module may touch clocks, tasks, disk and wire.

The rules read the syntax tree of everything below `src/`, so an import inside a function counts
too. An import under `if TYPE_CHECKING:` does not: nothing is imported when the program runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.errors import ToolError

CORE = "dex_agents"
OPENAI = "dex_agents_openai_agents"
ENGINE = "dex_embedded"

# What each package may import of the others.
ARROWS = {
    CORE: frozenset[str](),
    OPENAI: frozenset({CORE}),
    "dex_agents_testkit": frozenset({CORE}),
    ENGINE: frozenset[str](),
}

# Modules that may start the engine, each through an import inside a function: an application that
# talks to a server must not need the engine installed.
ENGINE_STARTERS = ("dex_agents.local", "dex_agents.testing", "dex_agents_testkit")

# Inside the engine: a module, and the only layer that may import it.
CONFINED_MODULES = {
    "sqlite3": "_store",
    "grpc": "_wire",
    "grpc_status": "_wire",
    "dex.dexpb.dex_pb2_grpc": "_wire",
}

# Inside the engine: callables that start tasks, which only `_runtime` does.
TASK_STARTERS = frozenset({"create_task", "ensure_future", "TaskGroup"})

# `_kernel` is pure: what it decides depends on its arguments alone.
IMPURE_MODULES = frozenset(
    {
        "asyncio",
        "concurrent",
        "grpc",
        "multiprocessing",
        "os",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "subprocess",
        "tempfile",
        "threading",
        "time",
    }
)
IMPURE_CALLS = frozenset({"now", "utcnow", "today", "open", "uuid1", "uuid4"})

# Layers that a layer of the same package must not import.
LAYERS_ABOVE = {
    ENGINE: {
        "_kernel": frozenset({"_store", "_runtime", "_wire"}),
        "_store": frozenset({"_runtime", "_wire"}),
    },
    OPENAI: {
        "_model": frozenset({"_tools", "_graph", "_steps"}),
        "_stored": frozenset({"_tools", "_graph", "_steps"}),
        "_tools": frozenset({"_graph", "_steps"}),
        "_graph": frozenset({"_steps"}),
    },
}


@dataclass(frozen=True)
class Import:
    """One imported module: its absolute dotted name, where, and whether inside a function."""

    target: str
    line: int
    lazy: bool


@dataclass(frozen=True)
class Module:
    """One source file of a package: its dotted name and what it does."""

    name: str
    path: str
    imports: tuple[Import, ...]
    calls: tuple[tuple[str, int], ...]


def import_problems(root: Path) -> list[str]:
    """Return every broken arrow and layer rule in the sources of all packages.

    Raises:
        ToolError: there are no sources, or a file does not parse.
    """
    modules = read_modules(root)
    if not modules:
        raise ToolError(f"no sources below {root / 'packages'}")
    problems: list[str] = []
    for module in modules:
        problems += _arrow_problems(module)
        problems += _layer_problems(module)
        if _package(module.name) == ENGINE:
            problems += _engine_problems(module)
    return problems


def read_modules(root: Path) -> list[Module]:
    """Return every module below `packages/*/*/src`."""
    found: list[Module] = []
    for source in sorted(root.glob("packages/*/*/src")):
        for path in sorted(source.rglob("*.py")):
            parts = list(path.relative_to(source).with_suffix("").parts)
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            shown = path.relative_to(root).as_posix()
            found.append(_read_module(path, name, shown, is_package=is_package))
    return found


def _read_module(path: Path, name: str, shown: str, *, is_package: bool) -> Module:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=shown)
    except SyntaxError as error:
        raise ToolError(f"{shown} does not parse: {error}") from error
    parent = name if is_package else name.rpartition(".")[0]
    imports: list[Import] = []
    calls: list[tuple[str, int]] = []
    for node, lazy in _walk(tree.body, lazy=False):
        if isinstance(node, ast.Import):
            imports += [Import(alias.name, node.lineno, lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, parent)
            # `from a import b` may import the module a.b, so both names are looked at.
            imports += [Import(f"{base}.{alias.name}", node.lineno, lazy) for alias in node.names]
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute):
                calls.append((called.attr, node.lineno))
            elif isinstance(called, ast.Name):
                calls.append((called.id, node.lineno))
    return Module(name, shown, tuple(imports), tuple(calls))


def _walk(nodes: Sequence[ast.AST], *, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node that runs, and whether it runs only when a function is called."""
    for node in nodes:
        yield node, lazy
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _walk(node.orelse, lazy=lazy)
            continue
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk(list(ast.iter_child_nodes(node)), lazy=lazy or is_function)


def _is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


def _absolute(node: ast.ImportFrom, parent: str) -> str:
    if node.level == 0:
        return node.module or ""
    steps = parent.split(".")
    base = steps[: len(steps) - (node.level - 1)]
    return ".".join([*base, *([node.module] if node.module else [])])


def _package(name: str) -> str:
    return name.partition(".")[0]


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def _arrow_problems(module: Module) -> list[str]:
    own = _package(module.name)
    allowed = ARROWS.get(own)
    if allowed is None:
        return [f"{module.path}: {own} has no entry in ARROWS of tools/rules/imports.py; add it"]
    starts_engine = any(_within(module.name, name) for name in ENGINE_STARTERS)
    problems: list[str] = []
    for found in module.imports:
        target = _package(found.target)
        if target not in ARROWS or target == own or target in allowed:
            continue
        where = f"{module.path}:{found.line}"
        if target == ENGINE and starts_engine:
            if not found.lazy:
                problems.append(
                    f"{where}: {module.name} imports {ENGINE} at import time; "
                    "move the import into the function that starts the engine"
                )
            continue
        problems.append(
            f"{where}: {own} must not import {target}; it may import "
            f"{', '.join(sorted(allowed)) or 'no package of this repository'}"
        )
    return problems


def _layer(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def _layer_problems(module: Module) -> list[str]:
    package, layer = _package(module.name), _layer(module.name)
    above = LAYERS_ABOVE.get(package, {}).get(layer, frozenset[str]())
    return [
        f"{module.path}:{found.line}: {layer} must not import {name}, which is built on it"
        for found in module.imports
        for name in sorted(above)
        if _within(found.target, f"{package}.{name}")
    ]


def _engine_problems(module: Module) -> list[str]:
    layer = _layer(module.name)
    problems: list[str] = []
    for found in module.imports:
        where = f"{module.path}:{found.line}"
        for name, owner in CONFINED_MODULES.items():
            if layer != owner and _within(found.target, name):
                problems.append(f"{where}: only {ENGINE}.{owner} imports {name}; go through it")
        if layer == "_kernel" and _package(found.target) in IMPURE_MODULES:
            problems.append(
                f"{where}: _kernel is pure and must not import {_package(found.target)}; "
                "take the value as an argument"
            )
    for name, line in module.calls:
        where = f"{module.path}:{line}"
        if layer != "_runtime" and name in TASK_STARTERS:
            problems.append(f"{where}: only {ENGINE}._runtime starts tasks, and this calls {name}")
        if layer == "_kernel" and name in IMPURE_CALLS:
            problems.append(
                f"{where}: _kernel is pure and must not call {name}; take the value as an argument"
            )
    return problems
