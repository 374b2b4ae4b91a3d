"""Git repositories of tests, untouched by the settings of the machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

AUTHOR = {
    "GIT_AUTHOR_NAME": "A Tester",
    "GIT_AUTHOR_EMAIL": "tester@host.example",
    "GIT_COMMITTER_NAME": "A Tester",
    "GIT_COMMITTER_EMAIL": "tester@host.example",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def git(root: Path, *arguments: str) -> None:
    """Run git at `root`."""
    subprocess.run(["git", *arguments], cwd=root, env={**os.environ, **AUTHOR}, check=True)


def commit_all(root: Path) -> None:
    """Commit everything that is there."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "A commit")
