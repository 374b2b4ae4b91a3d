"""The command `tools smoke`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.commands import Commands, in_environment
from tools.console import say
from tools.errors import ToolError
from tools.smoke.build import build, sdist_of, wheel_of
from tools.smoke.pythons import SUPPORTED, Interpreter, find_pythons
from tools.smoke.trial import RESOLUTIONS, Trial, run_trial
from tools.uv import open_toolbox
from tools.workspace import Member, read_members

# The version that runs this.
_THIS = "this"


def add_to(commands: Commands) -> None:
    """Add the commands of this area."""
    text = "build every package, check what it holds, install it alone elsewhere, and use it"
    added = commands.add("smoke", in_environment(_smoke), text)
    added.add_argument(
        "--python",
        action="append",
        choices=[*SUPPORTED, _THIS],
        help="repeatable; every supported version that the machine has when left out",
    )
    added.add_argument(
        "--dependencies", action="append", choices=list(RESOLUTIONS), help="both when left out"
    )
    added.add_argument("--package", action="append", metavar="NAME", help="all when left out")
    added.add_argument(
        "--dist", type=Path, help="files to check; what is missing among them is built"
    )


def _smoke(root: Path, parsed: argparse.Namespace) -> int:
    members = read_members(root)
    pythons = _pythons(parsed.python)
    names: list[str] = parsed.package or [member.name for member in members]
    unknown = sorted(set(names) - {member.name for member in members})
    if unknown:
        raise ToolError(f"{', '.join(unknown)}: no package of this workspace")
    with tempfile.TemporaryDirectory(prefix="dex-dist-") as temporary:
        dist = Path(temporary).resolve()
        given = list(parsed.dist.iterdir()) if parsed.dist else []
        for path in given:
            shutil.copy(path, dist)
        missing = [m for m in members if not any(has(p, m) for p in given)]
        say(f"{len(given)} files are given, building {len(missing)} packages")
        build(root, missing, dist)
        check_contents(root, [member for member in members if member.name in names], dist)
        resolutions: list[str] = parsed.dependencies or list(RESOLUTIONS)
        trials = [
            trial
            for trial in plan_trials(members, dist, pythons, resolutions)
            if trial.member.name in names
        ]
        return _run_all(root, trials)


def has(path: Path, member: Member) -> bool:
    """Say whether a file is a wheel or an sdist of a package, of whatever version."""
    return path.name.startswith(f"{member.import_name}-")


def check_contents(root: Path, members: Sequence[Member], dist: Path) -> None:
    """Check the wheels and sdists of these packages.

    Raises:
        ToolError: one is missing, lacks something or holds too much; the message lists it all.
    """
    from tools.smoke.contents import sdist_problems, wheel_problems

    problems: list[str] = []
    for member in members:
        problems += wheel_problems(root, member, wheel_of(dist, member))
        problems += sdist_problems(root, member, sdist_of(dist, member))
    if problems:
        raise ToolError("\n".join(problems))
    say(f"{len(members)} wheels and sdists hold what they should")


def plan_trials(
    members: Sequence[Member],
    dist: Path,
    pythons: Sequence[Interpreter],
    resolutions: Sequence[str],
) -> Iterator[Trial]:
    """Yield every trial: each wheel everywhere, each sdist once."""
    from tools.smoke.requirements import requirements_of

    by_name = {member.name: member for member in members}
    wheels = {member.name: wheel_of(dist, member) for member in members}
    for interpreter in pythons:
        for resolution in resolutions:
            for member in members:
                for extras in [(), tuple(member.extras)] if member.extras else [()]:
                    lines = requirements_of(member, extras, by_name, wheels)
                    yield Trial(member, extras, "wheel", resolution, interpreter, lines)
    for member in members:
        files = {**wheels, member.name: sdist_of(dist, member)}
        lines = requirements_of(member, (), by_name, files)
        yield Trial(member, (), "sdist", resolutions[0], pythons[0], lines)


def _pythons(minors: Sequence[str] | None) -> list[Interpreter]:
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = [this if minor == _THIS else minor for minor in minors or SUPPORTED]
    found = find_pythons(wanted)
    for interpreter in found:
        say(f"Python {interpreter.version}: {interpreter.path}, {interpreter.found}")
    missing = sorted(set(wanted) - {interpreter.minor for interpreter in found})
    if minors and missing:
        raise ToolError(f"this machine has no Python {', '.join(missing)}")
    for minor in missing:
        say(f"Python {minor}: not on this machine, so not tried")
    if not found:
        raise ToolError(f"this machine has none of Python {', '.join(wanted)}")
    return found


def _run_all(root: Path, trials: Sequence[Trial]) -> int:
    box = open_toolbox(root)
    failed: list[str] = []

    def run_one(number: int, trial: Trial) -> None:
        started = time.monotonic()
        try:
            said = run_trial(box, trial)
        except ToolError as error:
            failed.append(str(trial))
            say(f"{number}/{len(trials)} FAILED: {trial}\n{error}")
        else:
            took = time.monotonic() - started
            say(f"{number}/{len(trials)} {trial}: {said} ({took:.1f} s)")

    # A trial is one program after another, so one for each core.
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        list(threads.map(run_one, range(1, len(trials) + 1), trials))
    for name in failed:
        say(f"failed: {name}")
    versions = ", ".join(dict.fromkeys(trial.interpreter.version for trial in trials))
    say(f"{len(trials) - len(failed)} of {len(trials)} trials passed on Python {versions}")
    return 1 if failed else 0
