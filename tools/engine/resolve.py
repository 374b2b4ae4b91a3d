"""Decides which engine a test run uses, and keeps the reasons.

The order: the program that `DEXCLI` names, `dexcli` on PATH, one downloaded earlier, one downloaded
now, the embedded engine. What `DEXCLI` names must work; every other place may be passed over.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.engine.install import installed_program
from tools.engine.probe import version_of
from tools.engine.release import PROGRAM, Release
from tools.errors import ToolError

# Downloads and installs the release; returns the program and where its checksum came from.
Fetch = Callable[[], tuple[Path, str]]

EMBEDDED = "embedded"


@dataclass(frozen=True)
class Choice:
    """The engine to use.

    Attributes:
        program: The `dexcli` program, or None for the embedded engine.
        version: What the program says it is; empty for the embedded engine.
        because: Why it was chosen.
        passed_over: Why each better place was not taken, in order.
    """

    program: Path | None
    version: str
    because: str
    passed_over: tuple[str, ...]

    @property
    def line(self) -> str:
        """One line for scripts: the program's path, or `embedded`."""
        return EMBEDDED if self.program is None else str(self.program)

    def explanation(self) -> str:
        """Return the choice and all reasons, one a line."""
        name = "the embedded engine" if self.program is None else f"{PROGRAM} {self.version}"
        return "\n".join([*self.passed_over, f"using {name}: {self.because}"])


def resolve(
    release: Release,
    platform: str | None,
    cache: Path,
    fetch: Fetch | None,
    environment: Mapping[str, str] = os.environ,
) -> Choice:
    """Return the engine to use.

    Args:
        release: The release that counts as downloaded and is downloaded.
        platform: This machine's part of an asset's name, or None where there is no asset for it.
        cache: Where downloaded engines are.
        fetch: Downloads one; None where nothing may be downloaded.
        environment: Where `DEXCLI` and `PATH` are looked up.

    Raises:
        ToolError: `DEXCLI` names something that is no working program.
    """
    passed_over: list[str] = []

    def chosen(program: Path, because: str) -> Choice:
        return Choice(program, version_of(program), because, tuple(passed_over))

    named = environment.get("DEXCLI")
    if named:
        found = shutil.which(named, path=environment.get("PATH"))
        if found is None:
            raise ToolError(f"DEXCLI names {named}, which is no program; correct it or unset it")
        return chosen(Path(found).absolute(), "DEXCLI names it")
    passed_over.append("DEXCLI is not set")

    found = shutil.which(PROGRAM, path=environment.get("PATH"))
    if found is None:
        passed_over.append(f"no {PROGRAM} on PATH")
    else:
        try:
            return chosen(Path(found).absolute(), f"it is on PATH as {found}")
        except ToolError as error:
            passed_over.append(f"the one on PATH does not work: {error}")

    if platform is None:
        passed_over.append(f"no {PROGRAM} is released for this kind of machine")
    else:
        program = installed_program(cache, release, platform)
        if not program.exists():
            passed_over.append(f"version {release.version} was not downloaded before")
        else:
            try:
                return chosen(program, f"it was downloaded before, into {cache}")
            except ToolError as error:
                passed_over.append(f"the one downloaded before does not work: {error}")
        if fetch is None:
            passed_over.append("nothing may be downloaded now")
        else:
            try:
                program, origin = fetch()
                return chosen(program, f"downloaded now, its checksum {origin}")
            except ToolError as error:
                passed_over.append(f"downloading failed: {error}")
    return Choice(None, "", "nothing else is there", tuple(passed_over))
