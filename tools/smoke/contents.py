"""Checks what a built wheel and sdist hold: all that they should, and nothing else.

Needs `packaging`, so the commands run it inside `.venv`.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.metadata import ExceptionGroup, Metadata
from packaging.requirements import Requirement

from tools.workspace import Member

LICENCE = "Apache-2.0"

_SDIST_FILES = frozenset({"LICENSE", "PKG-INFO", "README.md", "pyproject.toml"})
# Newer versions of the build backend keep the pyproject as it was beside the one they normalise.
_MAY_BE_THERE = "pyproject.toml.orig"


def wheel_problems(root: Path, member: Member, wheel: Path) -> list[str]:
    """Return what is wrong with a wheel, each as a sentence that names it."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    info = f"{member.import_name}-{member.version}.dist-info"
    expected = {
        *source_files(root, member),
        *(f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE")),
    }
    # A package with commands has one file more.
    actual = set(files) - {f"{info}/entry_points.txt"}
    problems = _differences(expected, actual)
    licence = files.get(f"{info}/licenses/LICENSE")
    if licence is not None and licence != (root / "LICENSE").read_bytes():
        problems.append("its licence text differs from the repository's LICENSE")
    if f"{member.import_name}/py.typed" not in files:
        problems.append("it lacks py.typed, so type checkers ignore its types")
    if f"{info}/METADATA" in files:
        problems += metadata_problems(root, member, files[f"{info}/METADATA"])
    return [f"{wheel.name}: {problem}" for problem in problems]


def sdist_problems(root: Path, member: Member, sdist: Path) -> list[str]:
    """Return what is wrong with an sdist, each as a sentence that names it."""
    top = f"{member.import_name}-{member.version}/"
    with tarfile.open(sdist, "r:gz") as archive:
        names = [entry.name for entry in archive if not entry.isdir()]
    outside = [f"it holds {name}, outside of {top}" for name in names if not name.startswith(top)]
    actual = {name.removeprefix(top) for name in names if name.startswith(top)} - {_MAY_BE_THERE}
    expected = {*_SDIST_FILES, *(f"src/{name}" for name in source_files(root, member))}
    problems = outside + _differences(expected, actual)
    return [f"{sdist.name}: {problem}" for problem in problems]


def source_files(root: Path, member: Member) -> set[str]:
    """Return every file of a package's sources, as it has to lie in a wheel."""
    source = root / member.folder / "src"
    return {
        path.relative_to(source).as_posix()
        for path in (source / member.import_name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def metadata_problems(root: Path, member: Member, data: bytes) -> list[str]:
    """Return what in a distribution's metadata does not fit the repository."""
    try:
        found = Metadata.from_email(data)
    except ExceptionGroup as group:
        return [f"its metadata is invalid: {error}" for error in group.exceptions]
    readme = (root / member.folder / "README.md").read_text(encoding="utf-8")
    facts: Mapping[str, tuple[object, object]] = {
        "name": (found.name, member.name),
        "version": (str(found.version), member.version),
        "licence": (found.license_expression, LICENCE),
        "licence file": (list(found.license_files or []), ["LICENSE"]),
        "supported Python": (str(found.requires_python), member.requires_python),
        "description type": (found.description_content_type, "text/markdown"),
        "description": ((found.description or "").strip(), readme.strip()),
        "requirements": (
            sorted(map(_plain, found.requires_dist or [])),
            sorted(_declared(member)),
        ),
    }
    problems = [
        f"its {name} is {_short(actual)}, expected {_short(expected)}"
        for name, (actual, expected) in facts.items()
        if actual != expected
    ]
    if not found.summary:
        problems.append("it has no summary")
    if "Typing :: Typed" not in (found.classifiers or []):
        problems.append("it lacks the classifier `Typing :: Typed`")
    return problems


def _declared(member: Member) -> list[str]:
    plain = [_plain(Requirement(text)) for text in member.dependencies]
    for extra, texts in member.extras.items():
        for text in texts:
            requirement = Requirement(text)
            requirement.marker = Requirement(f"x ; extra == '{extra}'").marker
            plain.append(_plain(requirement))
    return plain


def _plain(requirement: Requirement) -> str:
    return str(requirement)


def _differences(expected: Iterable[str], actual: Iterable[str]) -> list[str]:
    wanted, found = set(expected), set(actual)
    return [
        *(f"it lacks {name}" for name in sorted(wanted - found)),
        *(f"it holds {name}, which does not belong there" for name in sorted(found - wanted)),
    ]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
