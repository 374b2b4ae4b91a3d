"""A disk that is soon full, or read only: a small memory file system, or a limit on file sizes.

Mounting needs the right to; the limit works everywhere, and meets the engine as the same failure of
a write. Neither touches any other disk.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class SmallDisk:
    """A memory file system of a megabyte.

    Attributes:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def grow(self) -> None:
        """Gives it room."""
        self._remount("size=64m")

    def make_read_only(self) -> None:
        self._remount("ro")

    def make_writable(self) -> None:
        self._remount("rw")

    def fill(self) -> None:
        """Leaves no room at all."""
        block = b"\0" * 4096
        try:
            with (self.folder / "filler").open("wb", buffering=0) as file:
                while file.write(block) == len(block):
                    pass
        except OSError:
            return

    def _remount(self, options: str) -> None:
        _run("mount", "-o", f"remount,{options}", str(self.folder))


@contextmanager
def small_disk(folder: Path) -> Generator[SmallDisk | None]:
    """A small disk at `folder`, or None where nothing may be mounted."""
    folder.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)
