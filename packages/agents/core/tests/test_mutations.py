"""The mutations of the core fit its source and its rules, and a broken rule is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_mutations import (
    Mutation,
    copy_package,
    load_mutations,
    mutated_source,
    quickest_tests,
    rules_of,
    run_tests,
)

MUTATIONS = load_mutations()


def test_there_are_mutations_of_thirty_rules_and_more() -> None:
    assert len(rules_of(MUTATIONS)) >= 30


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.rule_id)
def test_a_mutation_changes_source_that_is_there_and_stays_python(mutation: Mutation) -> None:
    compile(mutated_source(mutation), mutation.file, "exec")
    (rule,) = rules_of([mutation])
    assert quickest_tests(rule)


def test_a_text_that_is_not_there_exactly_once_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("a = 1\nb = 1\n")
    with pytest.raises(ValueError, match="2 times"):
        mutated_source(Mutation("CORE-X-01", "x.py", " = 1", " = 2"), tmp_path)
    changed = mutated_source(Mutation("CORE-X-01", "x.py", "a = 1", "a = 2"), tmp_path)
    assert changed == "a = 2\nb = 1\n"


def test_tests_without_an_engine_are_preferred() -> None:
    (rule,) = rules_of([Mutation("CORE-EFFECT-01", "", "", "")])
    assert any(test.startswith("integration/") for test in rule.tests)
    assert all(test.startswith("unit/") for test in quickest_tests(rule))


@pytest.mark.parametrize("broken", [True, False])
def test_a_broken_rule_is_noticed_and_an_unbroken_one_is_not(tmp_path: Path, broken: bool) -> None:
    mutation = next(m for m in MUTATIONS if m.rule_id == "CORE-EFFECT-07")
    copy_package(tmp_path, mutation if broken else None)
    (rule,) = rules_of([mutation])
    assert run_tests(tmp_path, quickest_tests(rule)).noticed is broken


def test_a_run_that_tests_nothing_is_no_verdict(tmp_path: Path) -> None:
    copy_package(tmp_path, None)
    with pytest.raises(RuntimeError, match="pytest ended"):
        run_tests(tmp_path, ["test_distribution.py::test_that_is_not_there"])
