"""What pytest gains where the kit is installed.

The fixture `crashable_agent`, and two reports at the end of a run: the conformance of every adapter
that was checked, and the fault places that were reached. Silent where neither was used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest

if TYPE_CHECKING:
    from dex_agents_testkit.faults import CrashableAgent

_PROPERTY: Final = "dex_agents_conformance"
_PLACES_PROPERTY: Final = "dex_agents_fault_places"
_RESULTS: Final = pytest.StashKey[dict[str, dict[str, dict[str, str]]]]()
_PLACES: Final = pytest.StashKey[Counter[str]]()


@pytest.fixture
def crashable_agent(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> Generator[Callable[..., CrashableAgent]]:
    """Make agents in processes that the test can strike: `crashable_agent("module:flow")`.

    The arguments are those of `dex_agents_testkit.faults.CrashableAgent`, without the folder.
    """
    from dex_agents_testkit.faults import CrashableAgent

    made: list[CrashableAgent] = []

    def make(flow: str, **options: object) -> CrashableAgent:
        folder = tmp_path / f"crashable-agent-{len(made) + 1}"
        agent = CrashableAgent(flow, folder, **options)  # pyright: ignore[reportArgumentType] - passed on as they are
        made.append(agent)
        return agent

    yield make
    for agent in made:
        record_property(_PLACES_PROPERTY, agent.counts())


def pytest_configure(config: pytest.Config) -> None:
    """Start with no results."""
    config.stash[_RESULTS] = {}
    config.stash[_PLACES] = Counter()
    config.pluginmanager.register(_Collector(config), "dex-agents-conformance-results")


class _Collector:
    """Collects results from test reports, which also come from other processes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            # Fixtures record theirs when they end, and a later phase repeats earlier properties.
            if name == _PLACES_PROPERTY and report.when == "teardown":
                self._config.stash[_PLACES].update(cast("dict[str, int]", value))
            if name != _PROPERTY or report.when != "call":
                continue
            values = dict(cast("dict[str, str]", value))
            adapter = values.pop("adapter")
            known = self._config.stash[_RESULTS].setdefault(adapter, {})
            known[values["requirement_id"]] = values


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print a report per adapter, and one about the fault places."""
    places = config.stash[_PLACES]
    if places:
        terminalreporter.section("fault places")
        for line, count in places.items():
            terminalreporter.write_line(f"  {line:<40} {count:>6}")
    found = config.stash[_RESULTS]
    if not found:
        return
    from dex_agents_testkit.conformance import REQUIREMENTS, ConformanceReport, RequirementResult

    terminalreporter.section("adapter conformance")
    for adapter, results in sorted(found.items()):
        ordered = tuple(
            RequirementResult.from_dict(results[rule.requirement_id])
            for rule in REQUIREMENTS
            if rule.requirement_id in results
        )
        terminalreporter.write_line(ConformanceReport(adapter, ordered).render())
