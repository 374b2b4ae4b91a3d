"""Collects which behaviours of an engine held in a run, and tells at its end.

Here and not beside the conformance tests, since with several processes the one that reports
collects no tests itself.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from engine_support import (
    ADDRESS,
    HELD,
    NOT_HELD,
    NOT_TRIED,
    REPORT,
    load_behaviours,
    worst,
)

_outcomes: dict[str, list[str]] = {}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "behaviour(name): the behaviour of an engine that this test checks"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("behaviour"):
            item.user_properties.append(("behaviour", marker.args[0]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    notes = dict(report.user_properties)
    if "behaviour" not in notes:
        return
    if report.failed:
        outcome = NOT_HELD
    elif report.skipped:
        outcome = NOT_TRIED
    elif report.when == "call":
        outcome = str(notes.get("outcome", HELD))
    else:
        return
    for name, value in report.user_properties:
        if name == "behaviour":
            _outcomes.setdefault(str(value), []).append(outcome)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _outcomes:
        return
    outcomes = {name: worst(seen) for name, seen in _outcomes.items()}
    if path := os.environ.get(REPORT):
        Path(path).write_text(json.dumps(outcomes), encoding="utf-8")
    behaviours = [each for each in load_behaviours() if each.behaviour_id in outcomes]
    terminalreporter.section("conformance")
    # Whoever tries another engine wants to see each behaviour; here a count by area will do.
    if ADDRESS in os.environ or terminalreporter.verbosity > 0:
        for each in behaviours:
            outcome = outcomes[each.behaviour_id]
            terminalreporter.line(f"{outcome:<16} {each.behaviour_id:<44} {each.sentence}")
    counts: dict[str, Counter[str]] = {}
    for each in behaviours:
        counts.setdefault(each.area, Counter())[outcomes[each.behaviour_id]] += 1
    for area, count in counts.items():
        numbers = ", ".join(f"{number} {outcome}" for outcome, number in count.most_common())
        terminalreporter.line(f"{area:<28} {numbers}")
