"""What no file of this repository may say: a package index's host, or a path of one machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tools.console import capture

# Put together from parts so that this file does not break its own rule.
INDEX_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("pypi", "python", "org"),
        ("registry", "npmjs", "org"),
        ("registry", "yarnpkg", "com"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
    )
)

_MACHINE_FOLDERS = ("work", "root", "home", "Users")
_MACHINE_PATH = re.compile(rf"(?<![\w./~-])/(?:{'|'.join(_MACHINE_FOLDERS)})/[\w.-]")

_BINARY_PROBE = 8192


def tracked_files(root: Path) -> list[Path]:
    """Return every file that git tracks or would add, as paths relative to `root`.

    Raises:
        ToolError: `root` is not in a git repository, or git is missing.
    """
    listed = capture(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        hint="This check needs git and a clone of the repository.",
    )
    names = sorted({name for name in listed.split("\0") if name})
    return [Path(name) for name in names if (root / name).is_file()]


def content_problems(root: Path, files: Iterable[Path]) -> list[str]:
    """Return each line of `files` that names a package index's host or a machine's path."""
    problems: list[str] = []
    for file in files:
        data = (root / file).read_bytes()
        if b"\0" in data[:_BINARY_PROBE]:
            continue
        text = data.decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            where = f"{file.as_posix()}:{number}"
            problems += [
                f"{where}: names the package index host {host}; say the package's name alone"
                for host in INDEX_HOSTS
                if host in line.lower()
            ]
            path = _MACHINE_PATH.search(line)
            if path is not None:
                problems.append(
                    f"{where}: names a path of one machine ({path.group()}...); "
                    "make it relative or take it from the environment"
                )
    return problems
