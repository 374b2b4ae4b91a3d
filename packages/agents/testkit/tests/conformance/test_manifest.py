"""The manifest, the checks and the broken runners speak of the same requirements."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys

import pytest
from conformance_broken import BROKEN, BrokenRunner
from conformance_reference import ALL_ABILITIES, ReferenceRunner

from dex_agents_testkit.conformance import (
    REQUIREMENTS,
    Ability,
    Requirement,
    Verdict,
    check_runner,
)
from dex_agents_testkit.conformance._running import CHECKS

IDS = [requirement.requirement_id for requirement in REQUIREMENTS]


def test_every_requirement_has_one_check_and_every_check_a_requirement() -> None:
    assert len(set(IDS)) == len(IDS)
    assert set(CHECKS) == set(IDS)


def test_every_requirement_has_a_broken_runner_or_says_why_none_can_break_it() -> None:
    broken = [runner.breaks for runner in BROKEN]
    assert len(set(broken)) == len(broken)
    unbreakable = {r.requirement_id for r in REQUIREMENTS if r.unbreakable_because}
    assert set(broken) | unbreakable == set(IDS)
    assert not set(broken) & unbreakable


def test_every_rule_is_a_sentence_of_its_own() -> None:
    rules = [requirement.rule for requirement in REQUIREMENTS]
    assert len(set(rules)) == len(rules)
    assert all(rule[0].isupper() and rule.endswith(".") for rule in rules)


def test_every_ability_is_needed_by_a_requirement() -> None:
    assert {ability for r in REQUIREMENTS for ability in r.abilities} == set(Ability)


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda r: r.requirement_id)
def test_the_source_of_a_requirement_exists(requirement: Requirement) -> None:
    package, *names = requirement.source.split(".")
    found: object = importlib.import_module(package)
    for name in names:
        fields = dataclasses.fields(found) if dataclasses.is_dataclass(found) else ()
        if name in {field.name for field in fields}:
            return
        found = getattr(found, name)


async def test_a_runner_that_keeps_the_contract_passes_everything() -> None:
    report = await check_runner(ReferenceRunner, ALL_ABILITIES)
    assert report.having(Verdict.PASSED) == report.results, report.render()


async def test_what_an_adapter_does_not_declare_is_skipped_by_name() -> None:
    report = await check_runner(ReferenceRunner, ALL_ABILITIES - {Ability.USAGE})
    (skipped,) = report.having(Verdict.SKIPPED)
    assert skipped.requirement_id == "usage.this_call"
    assert skipped.detail == "not declared: usage"


@pytest.mark.parametrize("broken", BROKEN, ids=lambda runner: runner.__name__)
async def test_a_broken_runner_fails_exactly_its_own_requirement(
    broken: type[BrokenRunner],
) -> None:
    report = await check_runner(broken, ALL_ABILITIES, name=broken.__name__)
    assert report.broken == {broken.breaks}, report.render()
    own = next(r for r in report.results if r.requirement_id == broken.breaks)
    assert own.verdict is Verdict.FAILED


def test_the_suite_needs_no_agent_framework_and_pytest_only_for_its_class() -> None:
    program = (
        "import sys; sys.modules.update(agents=None, openai=None, pytest=None)\n"
        "from dex_agents_testkit.conformance import REQUIREMENTS, check_runner\n"
        "try:\n    from dex_agents_testkit.conformance import AdapterConformance\n"
        "except ImportError as error:\n    print(error.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.split() == ["pytest"], done.stderr
