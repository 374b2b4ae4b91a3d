"""Imports every public module of an installed package, then runs the program that uses it.

Run by the interpreter of a fresh environment: `try_package.py DISTRIBUTION PACKAGE [EXTRA ...]`.
One process for both, because importing takes most of the time.
"""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import sys
from importlib import metadata
from pathlib import Path


def import_all(distribution: str, package: str) -> None:
    """Import the package, then its public modules; a module run as a program is not one."""
    top = importlib.import_module(package)
    place = Path(str(top.__file__)).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"{package} came from {place}"
    names = [package]
    for found in pkgutil.walk_packages(top.__path__, f"{package}."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            importlib.import_module(found.name)
            names.append(found.name)
    for name in names:
        module = sys.modules[name]
        for public in getattr(module, "__all__", ()):
            getattr(module, public)
    print(f"{distribution} {metadata.version(distribution)}, {len(names)} modules", end="; ")


_, distribution, package, *extras = sys.argv
import_all(distribution, package)
program = Path(__file__).with_name(f"use_{package}.py")
sys.argv = [str(program), *extras]
runpy.run_path(str(program), run_name="__main__")
