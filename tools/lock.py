"""Resolves dependencies and writes uv.lock; the only code that may write it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.console import capture, run, say
from tools.lockfile import neutral
from tools.sync import exclusive
from tools.uv import (
    BUILD_REQUIREMENTS,
    UV_REQUIREMENTS,
    Toolbox,
    index_environment,
    offline_environment,
    open_toolbox,
    pinned_version,
)
from tools.wheelhouse import fill_wheelhouse
from tools.workspace import read_toml, table


def lock(root: Path, upgrade_packages: Sequence[str] = (), *, upgrade: bool = False) -> None:
    """Resolve, rewrite the lock so that it names no host, and check it against the wheelhouse.

    Versions already locked stay, unless a pyproject rules them out or an upgrade is asked for.

    Raises:
        ToolError: nothing satisfies the pyprojects, or the result does not pass uv's own check. The
            former lock is then back in place.
    """
    with exclusive(root):
        box = open_toolbox(root)
        path = root / "uv.lock"
        former = path.read_bytes() if path.exists() else None
        try:
            _resolve(box, path, upgrade_packages, upgrade=upgrade)
        except BaseException:
            _restore(path, former)
            raise
        changed = path.read_bytes() != former
        say("uv.lock has changed" if changed else "uv.lock was up to date")


def write_tool_requirements(root: Path) -> None:
    """Write the hashed files for uv itself and for the build backends the root pyproject pins."""
    with exclusive(root):
        box = open_toolbox(root)
        build = table(read_toml(root / "pyproject.toml"), "tool", "uv")
        wanted = {
            UV_REQUIREMENTS: [f"uv=={pinned_version(root)}"],
            BUILD_REQUIREMENTS: build.get("build-constraint-dependencies", []),
        }
        options = ["--generate-hashes", "--no-deps", "--no-annotate", "--no-header", "--quiet"]
        for path, requirements in wanted.items():
            text = capture(
                [box.uv, "pip", "compile", "-", *options, "--no-emit-index-url"],
                cwd=root,
                env=index_environment(box),
                stdin="\n".join(requirements),
            )
            note = "# Written by `python3 -m tools lock --tools`.\n"
            (root / path).write_text(note + text, encoding="utf-8")
            say(f"wrote {path}")


def _resolve(box: Toolbox, path: Path, packages: Sequence[str], *, upgrade: bool) -> None:
    options = ["--upgrade"] if upgrade else []
    for package in packages:
        options += ["--upgrade-package", package]
    say("resolving")
    run(
        [box.uv, "lock", *options, "--python", box.interpreter],
        cwd=box.root,
        env=index_environment(box),
    )
    path.write_text(neutral(path.read_text(encoding="utf-8")), encoding="utf-8")
    fill_wheelhouse(box)
    say("checking the lock against the wheelhouse")
    run(
        [box.uv, "lock", "--check", "--quiet", "--python", box.interpreter],
        cwd=box.root,
        env=offline_environment(),
        hint="uv does not accept the rewritten lock.",
    )


def _restore(path: Path, former: bytes | None) -> None:
    if former is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(former)
