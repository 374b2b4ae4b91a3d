"""Plants bugs in a copy of the core, from data."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dex_agents

DATA = Path(__file__).resolve().parent / "histories" / "planted_bugs.toml"
SOURCE = Path(dex_agents.__file__).resolve().parent


@dataclass(frozen=True)
class PlantedBug:
    """One bug.

    Attributes:
        name: What is wrong.
        invariant: The invariant that it breaks.
        file: The file, relative to the package.
        edits: Texts that stand there exactly once, and what replaces each.
    """

    name: str
    invariant: str
    file: str
    edits: tuple[tuple[str, str], ...]

    def source(self) -> str:
        """Return the text of the file with the bug in it.

        Raises:
            ValueError: A text to replace does not stand there exactly once.
        """
        text = (SOURCE / self.file).read_text(encoding="utf-8")
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(
                    f"{self.name}: {old!r} stands {text.count(old)} times in {self.file}"
                )
            text = text.replace(old, new)
        return text

    def plant(self, folder: Path) -> dict[str, str]:
        """Copy the core with the bug into a folder; return the environment that imports it."""
        copy = folder / SOURCE.name
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / self.file).write_text(self.source(), encoding="utf-8")
        return {"PYTHONPATH": str(folder)}


def load_bugs() -> list[PlantedBug]:
    """Read the bugs."""
    return [_bug(entry) for entry in tomllib.loads(DATA.read_text(encoding="utf-8"))["bug"]]


def _bug(entry: dict[str, Any]) -> PlantedBug:
    edits = [(entry["text"], entry["replacement"])]
    if "and_text" in entry:
        edits.append((entry["and_text"], entry["and_replacement"]))
    return PlantedBug(entry["name"], entry["invariant"], entry["file"], tuple(edits))
