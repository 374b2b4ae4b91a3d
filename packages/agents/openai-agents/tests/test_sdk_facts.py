"""The facts about the SDK, their tests, the adapter and the page fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
from sdk_facts import PAGE, load_facts, render_page


def test_every_fact_has_a_test_and_a_use_and_every_marker_a_fact() -> None:
    assert load_facts().problems == []


def test_the_page_about_the_facts_is_up_to_date() -> None:
    page = render_page(load_facts())
    assert PAGE.read_text(encoding="utf-8") == page, "run sdk_facts --write"


def test_facts_are_sentences_of_their_own() -> None:
    sentences = [fact.says for fact in load_facts().facts]
    assert len(set(sentences)) == len(sentences)
    assert all(says.endswith(".") and not says.startswith(" ") for says in sentences)


def test_the_marker_is_declared(request: pytest.FixtureRequest) -> None:
    assert any(line.startswith("sdk_fact(") for line in request.config.getini("markers"))


FACT = 'says = "So."\nused_by = ["gate.py"]'


@pytest.mark.parametrize(
    ("facts", "marked", "problem"),
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
    tmp_path: Path, facts: dict[str, str], marked: list[str], problem: str | None
) -> None:
    data = tmp_path / "facts.toml"
    entries = [f'[[fact]]\nid = "{fact_id}"\n{rest}\n' for fact_id, rest in facts.items()]
    data.write_text('[sections]\na = "A"\n' + "".join(entries))
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
