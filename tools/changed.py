"""Finds the packages that a change can affect, so that CI can leave the others out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.console import capture
from tools.discover import CiJob, as_matrix, discover
from tools.errors import ToolError
from tools.workspace import Member, read_members, requirement_name

# Folders and files that no package's checks look at; the repository's own tests do.
_NO_PACKAGE_FOLDERS = ("changes", "docs")
_NO_PACKAGE_SUFFIX = ".md"


def changed_jobs(root: Path, ref: str) -> tuple[CiJob, ...]:
    """Return the jobs, in dependency order, that what changed since `ref` can affect.

    What counts is the difference from where this branch left `ref` to the work tree, new files
    included.

    Raises:
        ToolError: git does not know `ref`, or discovery finds a problem.
    """
    names = affected(read_members(root), changed_files(root, ref))
    return tuple(job for job in discover(root) if job.name in names)


def for_github(root: Path) -> None:
    """Write `matrix` to the output file of a GitHub Actions step.

    On a pull request the matrix holds what the request can affect, else every package.

    Raises:
        ToolError: this does not run in a GitHub Actions step, or discovery finds a problem.
    """
    output = os.environ.get("GITHUB_OUTPUT")
    if not output:
        raise ToolError("GITHUB_OUTPUT is not set; outside GitHub Actions use `discover --json`")
    target = os.environ.get("GITHUB_BASE_REF")  # set on pull requests alone
    jobs = changed_jobs(root, f"origin/{target}") if target else discover(root)
    with Path(output).open("a", encoding="utf-8") as file:
        file.write(f"matrix={as_matrix(jobs)}\n")
        file.write(f"any={'true' if jobs else 'false'}\n")


def changed_files(root: Path, ref: str) -> list[str]:
    """Return every file that differs from where this branch left `ref`, with forward slashes."""
    hint = f"Is {ref} there? A shallow clone lacks it; in CI check out with the full history."
    base = capture(["git", "merge-base", ref, "HEAD"], cwd=root, hint=hint).strip()
    # Without renames a moved file is a change of both folders.
    differing = capture(["git", "diff", "--name-only", "--no-renames", "-z", base], cwd=root)
    new = capture(["git", "ls-files", "--others", "--exclude-standard", "-z"], cwd=root)
    return sorted({name for name in (differing + new).split("\0") if name})


def affected(members: Sequence[Member], files: Iterable[str]) -> frozenset[str]:
    """Return the names of the members that a change of these files can affect.

    A package is affected through what it requires at run time, directly or not, and through what
    its tests require. A file outside the packages affects all of them, unless it is only prose.
    """
    touched: set[str] = set()
    for file in files:
        owner = next((m for m in members if file.startswith(m.folder + "/")), None)
        if owner is not None:
            touched.add(owner.name)
        elif not _is_prose(file):
            return frozenset(member.name for member in members)
    # Members come after what they depend on, so one pass reaches indirect dependents too.
    for member in members:
        if member.depends_on() & touched:
            touched.add(member.name)
    tested_with = {
        member.name
        for member in members
        if {requirement_name(text) for text in member.dev_requirements} & touched
    }
    return frozenset(touched | tested_with)


def _is_prose(file: str) -> bool:
    first, _, rest = file.partition("/")
    return first in _NO_PACKAGE_FOLDERS if rest else file.endswith(_NO_PACKAGE_SUFFIX)
