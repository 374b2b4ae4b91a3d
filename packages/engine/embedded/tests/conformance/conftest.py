"""The conformance suite runs against any engine.

`DEX_CONFORMANCE_ADDRESS` names one that is running already. Without it one private engine process
serves the whole session, from a fresh folder. The end of a run tells which behaviours held.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from engine_support import HELD, NOT_HELD, NOT_TRIED, REPORT, load_behaviours, worst
from engine_testing.process import engine_process
from engine_testing.world import World, open_world

ADDRESS = "DEX_CONFORMANCE_ADDRESS"
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


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine_address(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str]:
    given = os.environ.get(ADDRESS)
    if given:
        yield given
        return
    async with engine_process(
        tmp_path_factory.mktemp("engine"), env={"DEX_EMBEDDED_MINIMUM_HEARTBEAT": "1"}
    ) as engine:
        yield engine.address


@pytest.fixture(scope="session")
def heartbeat_timeout() -> timedelta:
    """The shortest heartbeat timeout the engine accepts; a foreign one wants ten seconds."""
    return timedelta(seconds=10 if os.environ.get(ADDRESS) else 1)


@pytest.fixture
async def world(engine_address: str, tmp_path: Path) -> AsyncGenerator[World]:
    """A client, and one worker that serves the scripted flow."""
    async with open_world(engine_address, tmp_path) as opened, opened.worker():
        yield opened


@pytest.fixture
async def bare_world(engine_address: str, tmp_path: Path) -> AsyncGenerator[World]:
    """A client without a worker."""
    async with open_world(engine_address, tmp_path) as opened:
        yield opened
