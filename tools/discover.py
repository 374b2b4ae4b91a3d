"""Finds what CI runs: the `ci.sh` of every workspace member, in dependency order."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.errors import ToolError
from tools.workspace import read_members

CI_SCRIPT = "ci.sh"


@dataclass(frozen=True)
class CiJob:
    """One package's checks.

    Attributes:
        name: Distribution name of the package.
        folder: Its folder relative to the repository root.
        script: Its `ci.sh` relative to the repository root.
    """

    name: str
    folder: str
    script: str


def discover(root: Path) -> tuple[CiJob, ...]:
    """Return one job per workspace member, each after the jobs of what it depends on.

    Raises:
        ToolError: a member has no `ci.sh`, a `ci.sh` cannot be executed, or one lies in a folder
            that is no member; the message lists all of them.
    """
    members = read_members(root)
    problems = [
        problem
        for member in members
        if (problem := _problem_with(root, f"{member.folder}/{CI_SCRIPT}")) is not None
    ]
    folders = {member.folder for member in members}
    for script in sorted(root.glob(f"packages/*/*/{CI_SCRIPT}")):
        folder = script.parent.relative_to(root).as_posix()
        if folder not in folders:
            problems.append(
                f"{folder} has a {CI_SCRIPT} but is no workspace member; "
                "add it to [tool.uv.workspace] members or remove the script"
            )
    if problems:
        raise ToolError("\n".join(problems))
    return tuple(CiJob(m.name, m.folder, f"{m.folder}/{CI_SCRIPT}") for m in members)


def as_text(jobs: Sequence[CiJob]) -> str:
    """Return one script path per line."""
    return "\n".join(job.script for job in jobs)


def as_matrix(jobs: Sequence[CiJob]) -> str:
    """Return the jobs as the JSON that a workflow's `strategy.matrix` takes."""
    return json.dumps({"include": [asdict(job) for job in jobs]})


def _problem_with(root: Path, script: str) -> str | None:
    path = root / script
    if not path.is_file():
        return f"{script} does not exist; every package needs one, copy another package's"
    if not os.access(path, os.X_OK):
        return f"{script} is not executable; run `chmod +x {script}`"
    return None
