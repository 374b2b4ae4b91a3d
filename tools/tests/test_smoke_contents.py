from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.errors import ToolError
from tools.smoke.build import sdist_of, wheel_of
from tools.smoke.commands import check_contents
from tools.smoke.contents import sdist_problems, source_files, wheel_problems
from tools.workspace import Member, read_members

INFO = "core-0.1.0.dist-info"
METADATA = """Metadata-Version: 2.4
Name: core
Version: 0.1.0
Summary: A core
License-Expression: Apache-2.0
License-File: LICENSE
Classifier: Typing :: Typed
Requires-Python: >=3.11
Requires-Dist: engine>=0.1,<0.2 ; extra == 'embedded'
Provides-Extra: embedded
Description-Content-Type: text/markdown

"""


@pytest.fixture
def core(workspace: Path) -> Member:
    (workspace / "LICENSE").write_text("the licence\n")
    package = workspace / "packages/agents/core/src/core"
    (package / "inner/__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "py.typed", "inner/a.py", "inner/data.json"):
        (package / name).touch()
    (package / "inner/__pycache__/a.pyc").touch()
    return next(member for member in read_members(workspace) if member.name == "core")


def wheel_files(workspace: Path, member: Member) -> dict[str, bytes]:
    readme = (workspace / member.folder / "README.md").read_text()
    return {
        **dict.fromkeys(source_files(workspace, member), b""),
        f"{INFO}/METADATA": (METADATA + readme).encode(),
        f"{INFO}/RECORD": b"",
        f"{INFO}/WHEEL": b"",
        f"{INFO}/licenses/LICENSE": b"the licence\n",
    }


def write_wheel(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "core-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_sdist(folder: Path, names: list[str]) -> Path:
    path = folder / "core-0.1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


def sdist_names(workspace: Path, member: Member) -> list[str]:
    own = ["LICENSE", "PKG-INFO", "README.md", "pyproject.toml"]
    sources = [f"src/{name}" for name in source_files(workspace, member)]
    return [f"core-0.1.0/{name}" for name in [*own, *sources]]


def test_files_that_hold_what_they_should_have_no_problem(
    workspace: Path, tmp_path: Path, core: Member
) -> None:
    wheel = write_wheel(tmp_path, wheel_files(workspace, core))
    assert wheel_problems(workspace, core, wheel) == []
    sdist = write_sdist(tmp_path, sdist_names(workspace, core))
    assert sdist_problems(workspace, core, sdist) == []
    check_contents(workspace, [core], tmp_path)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("core/py.typed", "it lacks py.typed, so type checkers"),
        ("core/inner/a.py", "it lacks core/inner/a.py"),
        ("core/inner/data.json", "it lacks core/inner/data.json"),
        (f"{INFO}/licenses/LICENSE", f"it lacks {INFO}/licenses/LICENSE"),
        (f"{INFO}/METADATA", f"it lacks {INFO}/METADATA"),
    ],
)
def test_a_wheel_that_lacks_a_file_is_a_problem(
    workspace: Path, tmp_path: Path, core: Member, name: str, problem: str
) -> None:
    files = wheel_files(workspace, core)
    del files[name]
    found = wheel_problems(workspace, core, write_wheel(tmp_path, files))
    assert any(problem in text for text in found)


@pytest.mark.parametrize("name", ["tests/test_a.py", "core/a.pyc", "other/__init__.py"])
def test_a_wheel_that_holds_too_much_is_a_problem(
    workspace: Path, tmp_path: Path, core: Member, name: str
) -> None:
    files = {**wheel_files(workspace, core), name: b""}
    (found,) = wheel_problems(workspace, core, write_wheel(tmp_path, files))
    assert f"it holds {name}, which does not belong there" in found


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Apache-2.0", "MIT", "its licence is 'MIT', expected 'Apache-2.0'"),
        ("License-File: LICENSE\n", "", "its licence file is []"),
        ("Version: 0.1.0", "Version: 0.2.0", "its version is '0.2.0'"),
        (">=3.11", ">=3.8", "its supported Python is '>=3.8'"),
        ("engine>=0.1,<0.2", "engine", "its requirements is"),
        ("Summary: A core\n", "", "it has no summary"),
        ("Typing :: Typed", "Framework :: AsyncIO", "lacks the classifier"),
        ("# A title", "# Another", "its description is"),
        ("Name: core\n", "", "its metadata is invalid"),
    ],
)
def test_metadata_that_says_something_else_is_a_problem(
    workspace: Path, tmp_path: Path, core: Member, old: str, new: str, problem: str
) -> None:
    files = wheel_files(workspace, core)
    text = files[f"{INFO}/METADATA"].decode()
    assert old in text
    files[f"{INFO}/METADATA"] = text.replace(old, new).encode()
    found = wheel_problems(workspace, core, write_wheel(tmp_path, files))
    assert any(problem in text for text in found)


def test_another_licence_text_is_a_problem(workspace: Path, tmp_path: Path, core: Member) -> None:
    files = {**wheel_files(workspace, core), f"{INFO}/licenses/LICENSE": b"another\n"}
    (found,) = wheel_problems(workspace, core, write_wheel(tmp_path, files))
    assert "its licence text differs" in found


def test_an_sdist_with_more_or_less_is_a_problem(
    workspace: Path, tmp_path: Path, core: Member
) -> None:
    names = sdist_names(workspace, core)
    names.remove("core-0.1.0/LICENSE")
    sdist = write_sdist(tmp_path, [*names, "core-0.1.0/tests/a.py", "elsewhere/a.py"])
    outside, lacks, holds = sdist_problems(workspace, core, sdist)
    assert "it holds elsewhere/a.py, outside of core-0.1.0/" in outside
    assert "it lacks LICENSE" in lacks
    assert "it holds tests/a.py" in holds


def test_what_was_not_built_is_named(workspace: Path, tmp_path: Path, core: Member) -> None:
    for find in (wheel_of, sdist_of):
        with pytest.raises(ToolError, match=r"core-0\.1\.0\S+ was not built"):
            find(tmp_path, core)
    write_wheel(tmp_path, {})
    write_sdist(tmp_path, ["other"])
    with pytest.raises(ToolError, match=r"it lacks core/py\.typed"):
        check_contents(workspace, [core], tmp_path)
