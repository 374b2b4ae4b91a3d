from __future__ import annotations

import sys
from pathlib import Path

import pytest
from workspace_trees import write_member, write_root

from tools import commands
from tools.cli import main
from tools.public_api import api_lines

SOURCES = {
    "__init__.py": "from offering.things import Thing, make\n__all__ = ['Thing', 'make']\n",
    "things.py": """
import dataclasses, enum, json
from typing import Protocol

@dataclasses.dataclass
class Base:
    name: str

@dataclasses.dataclass
class Thing(Base):
    size: int = 3
    def grow(self, by, *, slowly=True): ...
    async def wait(self): ...
    @property
    def big(self): return True
    def _hidden(self): ...

class Colour(enum.Enum):
    RED = "red"

class Failed(ValueError): ...

async def make(first, *rest, key, **more): ...
def _hidden(): ...
LIMIT = 3
""",
    "_inner.py": "raise AssertionError('a private module is not looked at')\n",
    "sub/__init__.py": "",
    "sub/deep.py": "def reach(): ...\n",
}


@pytest.fixture
def offering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with one importable package."""
    write_root(tmp_path, {"one": ["offering"]})
    folder = write_member(tmp_path, "packages/a/offering", "offering")
    for name, text in SOURCES.items():
        path = folder / "src/offering" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(folder / "src"))
    monkeypatch.setattr(commands, "sync", lambda root: root / ".venv")
    monkeypatch.setattr(commands, "inside", lambda _: True)
    yield_names = [name for name in sys.modules if name.partition(".")[0] == "offering"]
    for name in yield_names:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.usefixtures("offering")
def test_every_public_name_has_a_line_and_no_private_one_has() -> None:
    assert api_lines("offering") == [
        "offering.Thing class of Base(name, size=...)",
        "offering.Thing.big",
        "offering.Thing.grow(self, by, *, slowly=...)",
        "offering.Thing.name",
        "offering.Thing.size",
        "offering.Thing.wait async(self)",
        "offering.make async function(first, *rest, key, **more)",
        "offering.things.Base class(name)",
        "offering.things.Base.name",
        "offering.things.Colour enum",
        "offering.things.Colour.RED = 'red'",
        "offering.things.Failed class of ValueError",
        "offering.things.Thing is offering.Thing",
        "offering.things.make is offering.make",
        "offering.sub.deep.reach function()",
    ]


def test_the_command_shows_what_changed_and_writes_when_told(
    offering: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["api"], root=offering) == 0
    shown = capsys.readouterr()
    assert "+offering.sub.deep.reach function()" in shown.out
    assert "api --write" in shown.err
    kept = offering / "tests/public_api/offering.txt"
    assert not kept.exists()
    assert main(["api", "--write"], root=offering) == 0
    capsys.readouterr()
    assert main(["api"], root=offering) == 0
    assert capsys.readouterr().out == ""
    kept.write_text(kept.read_text().replace("reach", "grasp"))
    assert main(["api"], root=offering) == 0
    shown = capsys.readouterr().out
    assert "-offering.sub.deep.grasp function()" in shown
    assert "+offering.sub.deep.reach function()" in shown
