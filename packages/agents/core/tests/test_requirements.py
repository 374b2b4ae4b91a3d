"""The rules of the core, their tests and the page about them fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_requirements import (
    DATA,
    MARKER,
    PAGE,
    Requirements,
    load_requirements,
    render_page,
)

from tools.marked_tests import marked_tests


@pytest.fixture(scope="module")
def requirements() -> Requirements:
    """The rules; all tests are parsed for them, so once."""
    return load_requirements()


def test_every_rule_has_a_test_or_a_reason_and_every_named_rule_exists(
    requirements: Requirements,
) -> None:
    assert requirements.problems == []


def test_the_page_about_the_rules_is_up_to_date(requirements: Requirements) -> None:
    page = render_page(requirements)
    assert PAGE.read_text(encoding="utf-8") == page, "run core_requirements --write"


def test_rules_are_sentences_of_their_own(requirements: Requirements) -> None:
    texts = [rule.text for rule in requirements.rules.values()]
    assert len(set(texts)) == len(texts)
    assert all(text.endswith(".") and not text.startswith(" ") for text in texts)


def test_a_marked_test_is_collected_with_its_marker(request: pytest.FixtureRequest) -> None:
    assert any(line.startswith("requirement(") for line in request.config.getini("markers"))
    assert DATA.is_file()


@pytest.mark.parametrize(
    ("rules", "test", "problem"),
    [
        ('A-1 = "One."', '@pytest.mark.requirement("A-1")', None),
        ('A-1 = "One."', "", "A-1 has no test and no reason for that"),
        ("", '@pytest.mark.requirement("A-1")', "no rule A-1, named by test_x.py::test_x"),
        ('A-1 = "One."\n[untested]\nA-1 = "later"', "", None),
        (
            'A-1 = "One."\n[untested]\nA-1 = "later"',
            '@pytest.mark.requirement("A-1")',
            "A-1 has a test, so it is not untested any more",
        ),
        ('[untested]\nA-1 = "later"', "", "untested A-1 is no rule"),
        (
            'A-1 = "One."\n[held_elsewhere]\nA-1 = ["test_y.py::test_y"]',
            "",
            "A-1 names test_y.py::test_y, which does not exist",
        ),
        ('A-1 = "One."\n[held_elsewhere]\nA-1 = ["test_x.py::test_x"]', "", None),
    ],
)
def test_whatever_does_not_fit_is_told(
    tmp_path: Path, rules: str, test: str, problem: str | None
) -> None:
    data = tmp_path / "requirements.toml"
    data.write_text(f'[rules."Area"]\n{rules}\n')
    (tmp_path / "test_x.py").write_text(f"{test}\nasync def test_x(): ...\n")
    assert load_requirements(data, tmp_path).problems == ([] if problem is None else [problem])


def test_an_id_that_cannot_be_read_from_the_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("@mark.requirement(name)\ndef test_x(): ...\n")
    with pytest.raises(ValueError, match="test_x"):
        marked_tests(tmp_path, MARKER)
