"""Lists what a package offers, one name a line, so that a change of it is seen in a review.

Public are the modules whose path has no part that starts with `_`, and in each the names of
`__all__`, or where there is none its own names without `_`. Signatures are given by parameter names
and kinds: those are promises, while the text of annotations differs between versions of Python.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.workspace import Member

LISTS = Path("tests/public_api")


def list_of(member: Member) -> Path:
    """Return where the list of a package is kept, relative to the root."""
    return LISTS / f"{member.import_name}.txt"


def api_lines(package: str) -> list[str]:
    """Return the lines of an installed package, those of each module together."""
    lines: list[str] = []
    homes: dict[int, str] = {}
    for name in public_modules(package):
        module = importlib.import_module(name)
        for public in public_names(module):
            value = getattr(module, public)
            path = f"{name}.{public}"
            if isinstance(value, types.ModuleType):
                continue
            # A name that another public module has already is the same thing there.
            known = homes.get(id(value)) if _is_definition(value) else None
            if known is not None:
                lines.append(f"{path} is {known}")
                continue
            homes[id(value)] = path
            lines += describe(path, value, package)
    return lines


def public_modules(package: str) -> list[str]:
    """Return the package and its public modules, outer ones first."""
    top = importlib.import_module(package)
    found = [
        module.name
        for module in pkgutil.walk_packages(top.__path__, f"{package}.")
        if not any(part.startswith("_") for part in module.name.split("."))
    ]
    return [package, *sorted(found, key=lambda name: (name.count("."), name))]


def public_names(module: types.ModuleType) -> list[str]:
    """Return the public names of a module, sorted."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return sorted(declared)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def describe(path: str, value: object, package: str) -> Iterator[str]:
    """Yield the line of one name, and of a class those of its public members."""
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        yield f"{path} enum"
        for name, entry in value.__members__.items():
            yield f"{path}.{name} = {entry.value!r}"
    elif inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        # What a library or the interpreter makes of a class without an `__init__` is no promise.
        own = inspect.isfunction(value.__init__) and not getattr(value, "_is_protocol", False)
        made = _signature(value) if own else ""
        yield f"{path} class{f' of {bases}' if bases else ''}{made}"
        for name in _members(value, package):
            yield f"{path}.{name}{_member_signature(value, name)}"
    elif callable(value) and inspect.isroutine(value):
        kind = "async " if inspect.iscoroutinefunction(value) else ""
        yield f"{path} {kind}function{_signature(value)}"
    else:
        yield f"{path} value"


def _is_definition(value: object) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)


def _members(value: type, package: str) -> list[str]:
    """Return the public members that a class gets from this package, not from a library."""
    names: set[str] = set()
    for base in value.__mro__:
        if base.__module__.split(".")[0] == package:
            names |= {*vars(base), *inspect.get_annotations(base)}
    return sorted(name for name in names if not name.startswith("_"))


def _member_signature(value: type, name: str) -> str:
    found: Any = inspect.getattr_static(value, name, None)
    found = getattr(found, "__func__", found)  # what a class or static method holds
    if not inspect.isfunction(found):
        return ""
    return f"{' async' if inspect.iscoroutinefunction(found) else ''}{_signature(found)}"


def _signature(value: object) -> str:
    try:
        parameters = inspect.signature(value).parameters.values()  # pyright: ignore[reportArgumentType] - a class or a routine
    except (TypeError, ValueError):
        return ""
    parts: list[str] = []
    kind = inspect.Parameter
    starred = False
    for parameter in parameters:
        if parameter.kind is kind.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred = starred or parameter.kind is kind.VAR_POSITIONAL
        stars = {kind.VAR_POSITIONAL: "*", kind.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is kind.empty else "=..."
        parts.append(f"{stars}{parameter.name}{default}")
    return f"({', '.join(parts)})"
