"""The behaviours of an engine, the tests that show them, and the page that tells which are held.

`conformance/behaviours.toml` is the list. A conformance test names the behaviours it shows by the
marker `behaviour("id")`; markers are read from the source, so nothing is imported or collected.

`python packages/engine/embedded/tests/engine_support.py --write` runs the suite, writes the page.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from dex_embedded._wire.server import REFUSED, SERVED

TESTS: Final = Path(__file__).resolve().parent
SUITE: Final = TESTS / "conformance"
PAGE: Final = TESTS.parent / "SUPPORT.md"
ADDRESS: Final = "DEX_CONFORMANCE_ADDRESS"
"""The environment variable that names an engine to run the suite against."""
REPORT: Final = "DEX_CONFORMANCE_REPORT"
"""The environment variable that names a file for the outcomes of a run, as JSON."""

HELD: Final = "held"
NOT_HELD: Final = "not held"
REFUSED_BY_NAME: Final = "refused by name"
NOT_TRIED: Final = "not tried"

_NOTES: Final = {
    "LoadBlobs": "yes; always empty, since values travel inline",
    "StartFlow": "yes, without flow timeout, flow retry, timeout handler and push workers",
    "WaitForFlow": "yes; one call waits a minute at most",
    "InvokeRPC": "yes; query, transactional and locking",
    "TriggerContinueAsNew": "accepted without effect: a run is never too long here",
    "ReadStream": "yes; one call waits a minute at most",
}


@dataclass(frozen=True)
class Behaviour:
    """One behaviour of an engine.

    Attributes:
        behaviour_id: Its id, for example `start.delay`.
        area: The part of an engine it belongs to.
        sentence: What an engine does.
    """

    behaviour_id: str
    area: str
    sentence: str


def load_behaviours(data: Path = SUITE / "behaviours.toml") -> list[Behaviour]:
    """The list, in its order."""
    areas = cast(dict[str, dict[str, str]], tomllib.loads(data.read_text(encoding="utf-8")))
    return [
        Behaviour(behaviour_id, area, sentence)
        for area, sentences in areas.items()
        for behaviour_id, sentence in sentences.items()
    ]


def marked_tests(suite: Path = SUITE) -> dict[str, list[str]]:
    """The ids that each test of the suite names, by `file::name`; without a marker, none."""
    found: dict[str, list[str]] = {}
    for path in sorted(suite.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                found[f"{path.name}::{node.name}"] = [
                    cast(str, decorator.args[0].value)
                    for decorator in node.decorator_list
                    if isinstance(decorator, ast.Call)
                    and isinstance(decorator.func, ast.Name)
                    and decorator.func.id == "behaviour"
                    and isinstance(decorator.args[0], ast.Constant)
                ]
    return found


def problems(behaviours: Iterable[Behaviour], tests: Mapping[str, list[str]]) -> list[str]:
    """What does not fit between the list and the tests, one sentence each."""
    found: list[str] = []
    known = {behaviour.behaviour_id for behaviour in behaviours}
    shown: Counter[str] = Counter()
    for test, ids in tests.items():
        shown.update(ids)
        if not ids:
            found.append(f"{test} shows no behaviour")
        found += [
            f"{test} shows {each}, which is not in the list" for each in ids if each not in known
        ]
    found += [f"{each} has no test" for each in sorted(known) if not shown[each]]
    found += [f"{each} has more than one test" for each, count in shown.items() if count > 1]
    return found


def worst(outcomes: Iterable[str]) -> str:
    """One outcome for the several tries of a behaviour."""
    seen = set(outcomes)
    for outcome in (NOT_HELD, NOT_TRIED, REFUSED_BY_NAME):
        if outcome in seen:
            return outcome
    return HELD if seen else NOT_TRIED


def render_page(behaviours: Iterable[Behaviour], outcomes: Mapping[str, str]) -> str:
    """The page `SUPPORT.md`."""
    behaviours = list(behaviours)
    counts = Counter(outcomes.get(each.behaviour_id, NOT_TRIED) for each in behaviours)
    numbers = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    lines = [
        "# What the embedded engine serves",
        "",
        "Written by `python packages/engine/embedded/tests/engine_support.py --write` from a run",
        "of the conformance suite. The suite runs against any engine: name its address in",
        "`DEX_CONFORMANCE_ADDRESS`; the end of the run tells which behaviours that engine holds.",
        "",
        "Protocol versions 1 to 3. What is not served is refused by name with `UNIMPLEMENTED`,",
        "never ignored. Two come another way: a wait for a SubFlow is the result of a Step, so it",
        "fails its flow by name, and an attribute store is an unknown name, `INVALID_ARGUMENT`.",
        "",
        "## Behaviours",
        "",
        f"{len(behaviours)} behaviours: {numbers}.",
    ]
    area = ""
    for behaviour in behaviours:
        if behaviour.area != area:
            area = behaviour.area
            lines += ["", f"### {area}", "", "| behaviour | what an engine does | outcome |"]
            lines.append("|---|---|---|")
        outcome = outcomes.get(behaviour.behaviour_id, NOT_TRIED)
        lines.append(f"| `{behaviour.behaviour_id}` | {behaviour.sentence} | {outcome} |")
    lines += ["", "## Calls", "", "| call | served |", "|---|---|"]
    lines += [f"| `{name}` | {_NOTES.get(name, 'yes')} |" for name in SERVED]
    lines += [f"| `{name}` | no |" for name in REFUSED]
    lines += ["| `PollWorkerTask` | yes |", ""]
    return "\n".join(lines)


def outcomes_of(page: str) -> dict[str, str]:
    """The outcomes that a page tells, by behaviour."""
    return dict(re.findall(r"^\| `([\w.-]+)` \| .+ \| ([\w ]+) \|$", page, re.MULTILINE))


def run_suite() -> dict[str, str]:
    """Runs the suite; returns the outcomes by behaviour."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes.json"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", str(SUITE)],
            env={**os.environ, REPORT: str(report)},
            check=False,
        )
        return cast(dict[str, str], json.loads(report.read_text(encoding="utf-8")))


def main() -> int:
    """Writes the page, or says what does not fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="run the suite and write the page")
    options = parser.parse_args()
    behaviours = load_behaviours()
    found = problems(behaviours, marked_tests())
    for problem in found:
        print(problem)
    if options.write and not found:
        PAGE.write_text(render_page(behaviours, run_suite()), encoding="utf-8")
        print(f"wrote {PAGE.name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
