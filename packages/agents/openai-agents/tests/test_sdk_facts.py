"""The facts about the SDK, their tests, the adapter and the page fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
from sdk_facts import PAGE, Facts, load_facts, render_page


@pytest.fixture(scope="module")
def facts() -> Facts:
    """The facts; all tests are parsed for them, so once."""
    return load_facts()


def test_every_fact_has_a_test_and_a_use_and_every_marker_a_fact(facts: Facts) -> None:
    assert facts.problems == []


def test_the_page_about_the_facts_is_up_to_date(facts: Facts) -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(facts), "run sdk_facts --write"


def test_facts_are_sentences_of_their_own(facts: Facts) -> None:
    sentences = [fact.says for fact in facts.facts]
    assert len(set(sentences)) == len(sentences)
    assert all(says.endswith(".") and not says.startswith(" ") for says in sentences)


def test_the_marker_is_declared(request: pytest.FixtureRequest) -> None:
    assert any(line.startswith("sdk_fact(") for line in request.config.getini("markers"))


FACT = 'says = "So."\nused_by = ["gate.py"]'


@pytest.mark.parametrize(
    ("entries", "marked", "problem"),
    [
        ({"a.one": FACT}, ["a.one"], None),
        ({"a.one": FACT}, [], "a.one has no test"),
        ({"a.one": FACT}, ["a.one", "a.two"], "no fact a.two, named by test_x.py::test_x"),
        ({"b.one": FACT}, ["b.one"], "b.one begins like no section"),
        ({"a.one": 'says = "So."'}, ["a.one"], "a.one needs either used_by or kept_for"),
        ({"a.one": f'{FACT}\nkept_for = "x"'}, ["a.one"], "a.one needs either used_by or kept_for"),
        ({"a.one": 'says = "So."\nkept_for = "x"'}, ["a.one"], None),
        (
            {"a.one": FACT.replace("gate.py", "gates.py")},
            ["a.one"],
            "a.one names gates.py, which does not exist",
        ),
    ],
)
def test_whatever_does_not_fit_is_told(
    tmp_path: Path, entries: dict[str, str], marked: list[str], problem: str | None
) -> None:
    data = tmp_path / "facts.toml"
    written = [f'[[fact]]\nid = "{fact_id}"\n{rest}\n' for fact_id, rest in entries.items()]
    data.write_text('[sections]\na = "A"\n' + "".join(written))
    (tmp_path / "gate.py").touch()
    ids = ", ".join(f'"{fact_id}"' for fact_id in marked)
    (tmp_path / "test_x.py").write_text(f"@pytest.mark.sdk_fact({ids})\nasync def test_x(): ...\n")
    found = load_facts(data, tmp_path, tmp_path).problems
    assert found == ([] if problem is None else [problem])


def test_a_fact_that_is_there_twice_is_told(tmp_path: Path) -> None:
    data = tmp_path / "facts.toml"
    data.write_text('[sections]\na = "A"\n' + f'[[fact]]\nid = "a.one"\n{FACT}\n' * 2)
    (tmp_path / "gate.py").touch()
    (tmp_path / "test_x.py").write_text('@m.sdk_fact("a.one")\ndef test_x(): ...\n')
    assert load_facts(data, tmp_path, tmp_path).problems == ["a.one is there twice"]
