"""What an author sees: the report as text, as data, and at the end of a test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dex_agents_testkit.conformance import ConformanceReport, RequirementResult, Verdict

TESTS = Path(__file__).resolve().parent.parent
RESULTS = (
    RequirementResult("tools.ids", Verdict.FAILED, "[tools.ids] the id\nis blank", "tools.ids"),
    RequirementResult("items.json", Verdict.BLOCKED, "[tools.ids] the same", "tools.ids"),
    RequirementResult("usage.this_call", Verdict.SKIPPED, "not declared: usage"),
    RequirementResult("model.cancel", Verdict.PASSED),
)

ADAPTER_TEST = """
from conformance_broken import BrokenIds
from dex_agents_testkit.conformance import Ability, AdapterConformance

class TestBroken(AdapterConformance):
    abilities = frozenset(Ability) - {Ability.STREAMING}

    def make_runner(self, stage):
        return BrokenIds(stage)
"""


def test_a_report_has_a_line_for_every_requirement_and_counts_no_skip_as_passed() -> None:
    assert ConformanceReport("mine", RESULTS).render().splitlines() == [
        "conformance of mine",
        "  tools.ids        failed   [tools.ids] the id is blank",
        "  items.json       blocked  [tools.ids] the same",
        "  usage.this_call  skipped  not declared: usage",
        "  model.cancel     passed",
        "  4 requirements: 1 passed, 1 failed, 1 blocked, 1 skipped",
    ]


def test_a_requirement_that_only_blocked_others_counts_as_broken() -> None:
    assert ConformanceReport("mine", RESULTS[1:]).broken == {"tools.ids"}


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.verdict)
def test_a_result_comes_back_from_plain_text(result: RequirementResult) -> None:
    assert RequirementResult.from_dict(result.to_dict()) == result


def run_pytest(folder: Path, *options: str) -> str:
    (folder / "test_adapter.py").write_text(ADAPTER_TEST, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-o", f"pythonpath={TESTS}"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *options, "test_adapter.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_test_run_ends_with_the_report_also_when_it_ran_in_other_processes(
    tmp_path: Path, processes: str
) -> None:
    printed = run_pytest(tmp_path, "-n", processes, "-k", "tools or events or session.turn")
    report = printed.split("adapter conformance", 1)[1]
    lines = {line.split()[0]: line.split()[1:] for line in report.splitlines() if line[:2] == "  "}
    assert lines["tools.ids"][0] == "failed"
    assert lines["session.turn"][:2] == ["blocked", "[tools.ids]"]
    assert lines["tools.policy"] == ["passed"]
    assert lines["events.text"] == ["skipped", "not", "declared:", "streaming"]


def test_a_run_without_adapters_prints_no_report(tmp_path: Path) -> None:
    assert "adapter conformance" not in run_pytest(tmp_path, "-k", "nothing_like_that")
