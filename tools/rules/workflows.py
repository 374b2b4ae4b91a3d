"""What a workflow may hold: pinned actions, little power, and commands that also run elsewhere.

A workflow's own shell cannot be tried before it is pushed, so there is none: a step runs a verb of
the Makefile, a command of `tools`, or a script of the repository. `zizmor` knows the weaknesses.
Needs PyYAML, so the checks run it inside `.venv`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from tools.console import capture
from tools.errors import ToolError

WORKFLOWS = Path(".github/workflows")

_PINNED = re.compile(r"^\s*(?:- )?uses: (?P<action>[\w./-]+)@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
_USES = re.compile(r"^\s*(?:- )?uses:")
_MAKE = re.compile(r"make (?P<verb>[a-z]+|\"\$[A-Z]+\")(?: ARGS=\"[^\"$`]*\")?")
_TOOLS = "python3 -m tools "
# A package's script comes from the discovered matrix.
_SCRIPTS = ("bash .ci/run", 'bash "$SCRIPT"')
_CHECKOUT = "actions/checkout@"

# Says whether the command line of `tools` takes these arguments.
Accepts = Callable[[list[str]], bool]


def workflow_problems(root: Path, accepts: Accepts) -> list[str]:
    """Return what in the workflows breaks a rule.

    Args:
        root: The repository.
        accepts: Says whether `python3 -m tools` takes some arguments.

    Raises:
        ToolError: there are no workflows, or one is not a workflow at all.
    """
    files = sorted((root / WORKFLOWS).glob("*.yml"))
    if not files:
        raise ToolError(f"no workflows below {WORKFLOWS}")
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    verbs = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    problems: list[str] = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        shown = path.relative_to(root)
        problems += [f"{shown}:{number}: {said}" for number, said in _pin_problems(text)]
        workflow = _read(shown, text)
        if not isinstance(workflow.get("permissions"), dict):
            problems.append(f"{shown}: set `permissions` at the top, as little as the jobs need")
        for name, job in _jobs(shown, workflow):
            problems += [f"{shown}, {name}: {said}" for said in _job_problems(job, verbs, accepts)]
    return problems


def weaknesses(root: Path) -> str:
    """Return what `zizmor` finds in the workflows, empty where there is nothing."""
    options = ["--offline", "--no-progress", "--strict-collection", "--quiet", "--color=never"]
    try:
        capture([root / ".venv/bin/zizmor", *options, root / WORKFLOWS], cwd=root)
    except ToolError as error:
        return str(error)
    return ""


def takes(parse: Callable[[list[str]], object]) -> Accepts:
    """Turn an argument parser's method, which ends the process on a mistake, into a question."""

    def accepts(arguments: list[str]) -> bool:
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                parse(arguments)
            except SystemExit:
                return False
        return True

    return accepts


def _read(shown: Path, text: str) -> Mapping[str, Any]:
    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ToolError(f"{shown} is not valid YAML: {error}") from error
    if not isinstance(loaded, dict):
        raise ToolError(f"{shown} is no workflow")
    return cast("Mapping[str, Any]", loaded)


def _jobs(shown: Path, workflow: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    jobs = workflow.get("jobs")
    if not isinstance(jobs, dict) or not jobs:
        raise ToolError(f"{shown} has no jobs")
    yield from cast("dict[str, Mapping[str, Any]]", jobs).items()


def _pin_problems(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if _USES.match(line) and not _PINNED.match(line):
            yield (
                number,
                "pin the action as `OWNER/NAME@40-HEX-DIGITS # vX.Y.Z`; a tag can be moved",
            )


def _job_problems(job: Mapping[str, Any], verbs: set[str], accepts: Accepts) -> Iterator[str]:
    if "timeout-minutes" not in job:
        yield "set `timeout-minutes`; without it a hanging job runs for hours"
    for step in cast("list[Mapping[str, Any]]", job.get("steps", [])):
        if step.get("uses", "").startswith(_CHECKOUT):
            if step.get("with", {}).get("persist-credentials") is not False:
                yield "check out with `persist-credentials: false`"
        elif "run" in step:
            yield from _command_problems(step["run"], verbs, accepts)


def _command_problems(command: str, verbs: set[str], accepts: Accepts) -> Iterator[str]:
    made = _MAKE.fullmatch(command)
    if made is not None:
        verb = made["verb"]
        if verb not in verbs and not verb.startswith('"'):
            yield f"`{command}`: the Makefile has no verb {verb}"
    elif command.startswith(_TOOLS) and "\n" not in command and "${{" not in command:
        if not accepts(_arguments(command)):
            yield f"`{command}`: tools takes no such arguments"
    elif command not in _SCRIPTS:
        yield (
            f"`{command.strip()}`: run a verb of the Makefile or `python3 -m tools ...`, with "
            "values through `env`; shell in a workflow cannot be tried elsewhere"
        )


def _arguments(command: str) -> list[str]:
    # The only variable that a command takes is a Python version out of the matrix.
    return ["3.11" if part == "$VERSION" else part for part in shlex.split(command)[3:]]
