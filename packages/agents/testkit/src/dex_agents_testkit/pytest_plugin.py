"""Prints the conformance of every adapter that a test run has checked.

Loaded by pytest wherever the kit is installed; silent where no adapter was checked.
"""

from __future__ import annotations

from typing import Final, cast

import pytest

_PROPERTY: Final = "dex_agents_conformance"
_RESULTS: Final = pytest.StashKey[dict[str, dict[str, dict[str, str]]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start with no results."""
    config.stash[_RESULTS] = {}
    config.pluginmanager.register(_Collector(config), "dex-agents-conformance-results")


class _Collector:
    """Collects results from test reports, which also come from other processes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name != _PROPERTY:
                continue
            values = dict(cast("dict[str, str]", value))
            adapter = values.pop("adapter")
            known = self._config.stash[_RESULTS].setdefault(adapter, {})
            known[values["requirement_id"]] = values


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print a report per adapter."""
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
