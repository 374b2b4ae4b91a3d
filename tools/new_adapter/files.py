"""The files of a new adapter package, made from the templates beside this module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tools.errors import ToolError
from tools.workspace import Member, read_members

TEMPLATES = Path(__file__).with_name("template")
CORE = "dex-agents"

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_LONGEST_NAME = 28
_SUFFIX = ".in"


@dataclass(frozen=True)
class Adapter:
    """A package that is to be written.

    Attributes:
        name: Name of its folder, such as `other-agents`.
        core: The package it pins.
    """

    name: str
    core: Member

    @property
    def folder(self) -> str:
        """Folder relative to the repository root."""
        return f"packages/agents/{self.name}"

    @property
    def distribution(self) -> str:
        """Name under which it is published."""
        return f"{CORE}-{self.name}"

    @property
    def module(self) -> str:
        """Name under which it is imported."""
        return self.distribution.replace("-", "_")

    @property
    def docs_page(self) -> str:
        """Its page, relative to the repository root."""
        return f"docs/adapters/{self.name}.md"

    def filled(self, text: str) -> str:
        """Return a template, or the path of one, with the names of this adapter in it."""
        words = self.name.split("-")
        values = {
            "NAME": self.name,
            "FOLDER": self.folder,
            "DISTRIBUTION": self.distribution,
            "MODULE": self.module,
            "FUNCTION": self.name.replace("-", "_"),
            "CLASS": "".join(word.capitalize() for word in words),
            "TITLE": " ".join(word.capitalize() for word in words),
            "VERSION": self.core.version,
            "PYTHON": self.core.requires_python,
        }
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        return text


def plan_adapter(root: Path, name: str) -> Adapter:
    """Return the adapter of this name.

    Raises:
        ToolError: The name cannot be used, or is in use.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise ToolError(
            f"{name!r} is no name for an adapter; use at most {_LONGEST_NAME} small letters, "
            "digits and single hyphens, beginning with a letter, such as `other-agents`"
        )
    members = {member.name: member for member in read_members(root)}
    if CORE not in members:
        raise ToolError(f"this workspace has no package {CORE} that an adapter could pin")
    adapter = Adapter(name, members[CORE])
    if adapter.distribution in members or (root / adapter.folder).exists():
        raise ToolError(f"{adapter.folder} exists already; choose another name")
    return adapter


def package_files(root: Path, adapter: Adapter) -> dict[Path, str]:
    """Return the text of every new file, by its path relative to the root.

    Paths of templates are relative to the root too; `LICENSE` and `ci.sh` are those of the core.
    """
    files = {
        Path(adapter.filled(path.relative_to(TEMPLATES).as_posix())[: -len(_SUFFIX)]): (
            _with_sorted_imports(adapter.filled(path.read_text(encoding="utf-8")))
        )
        for path in sorted(TEMPLATES.rglob(f"*{_SUFFIX}"))
    }
    for name in ("LICENSE", "ci.sh"):
        text = (root / adapter.core.folder / name).read_text(encoding="utf-8")
        files[Path(adapter.folder, name)] = text
    return files


def _with_sorted_imports(text: str) -> str:
    """Sort neighbouring imports of one line; where the adapter's stands depends on its name."""
    block = re.compile(r"(?:^from dex_agents\S* import .*\n){2,}", re.MULTILINE)
    return block.sub(
        lambda match: "".join(
            sorted(match.group().splitlines(keepends=True), key=lambda line: line.split()[1])
        ),
        text,
    )
