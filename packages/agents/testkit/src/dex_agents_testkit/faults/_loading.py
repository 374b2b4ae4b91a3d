"""Finds the application's session Flow by its name, the same way in a test and in its workers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from dex_agents.session_flow import AgentSessionFlow


class FlowReferenceError(ValueError):
    """A Flow was named that cannot be found or is none; the message says which and why."""


def load_flow(reference: str) -> AgentSessionFlow:
    """Return the Flow that a reference names.

    Args:
        reference: `module:name`, or `folder/file.py:name` for a module that is not installed. The
            name is that of a Flow, or of a function without arguments that returns one.

    Raises:
        FlowReferenceError: There is no such thing, or it is no session Flow.
    """
    home, _, name = reference.rpartition(":")
    if not home or not name.isidentifier():
        raise FlowReferenceError(f"{reference!r} is not of the form module:name or file.py:name")
    module = _load_file(Path(home)) if home.endswith(".py") else importlib.import_module(home)
    found = getattr(module, name, None)
    if found is None:
        raise FlowReferenceError(f"{home} has no {name!r}")
    made = found() if callable(found) and not isinstance(found, AgentSessionFlow) else found
    if not isinstance(made, AgentSessionFlow):
        raise FlowReferenceError(f"{reference} is {type(made).__name__}, not an AgentSessionFlow")
    return made


def absolute_reference(reference: str) -> str:
    """Return a reference that means the same in a process with another working directory."""
    home, _, name = reference.rpartition(":")
    return f"{Path(home).resolve()}:{name}" if home.endswith(".py") else reference


def _load_file(path: Path) -> ModuleType:
    """Import a file as a script would be: its neighbours can be imported by their bare names."""
    path = path.resolve()
    if not path.is_file():
        raise FlowReferenceError(f"{path} does not exist")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    origin = getattr(module, "__file__", None)
    if origin is None or Path(origin).resolve() != path:
        raise FlowReferenceError(f"{path.stem} is imported from {origin} already, not from {path}")
    return module
