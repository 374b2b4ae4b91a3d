"""What the adapter takes for true about the SDK, and the tests that hold it.

`sdk_facts.toml` holds the facts. A test names the facts it holds by the marker
`sdk_fact("id", ...)`: it fails when one of them is no longer true.

`python3 -m packages.agents.openai-agents.tests.sdk_facts --write` writes the page.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dex_agents_openai_agents
from tools.marked_tests import cell_of_tests, holders_by_id, keep_page, marked_tests, table

TESTS = Path(__file__).resolve().parent
DATA = TESTS / "sdk_facts.toml"
PAGE = TESTS.parent / "SDK_FACTS.md"
SOURCE = Path(dex_agents_openai_agents.__file__).parent
MARKER = "sdk_fact"


@dataclass(frozen=True)
class Fact:
    """One fact about the SDK.

    Attributes:
        fact_id: Its id, for example `gate.stops-after-first-response`.
        section: Title of the part it belongs to; the beginning of the id says which.
        says: The fact, as a sentence that can be false.
        used_by: Modules of the adapter that stand on it, as paths below its package.
        kept_for: What it is kept for where no module stands on it.
        tests: The tests that hold it, as `path::name` under the tests folder, sorted.
    """

    fact_id: str
    section: str
    says: str
    used_by: tuple[str, ...] = ()
    kept_for: str = ""
    tests: tuple[str, ...] = ()


@dataclass
class Facts:
    """The facts, and what is wrong between them, the tests and the adapter.

    Attributes:
        facts: The facts in the order of the data.
        problems: What does not fit together, one sentence each.
    """

    facts: list[Fact] = field(default_factory=list[Fact])
    problems: list[str] = field(default_factory=list[str])


def load_facts(data: Path = DATA, tests: Path = TESTS, source: Path = SOURCE) -> Facts:
    """Read the facts, join them with the tests, and compare both directions.

    Args:
        data: The facts.
        tests: Folder of the tests.
        source: Package of the adapter, to which `used_by` is relative.
    """
    content = tomllib.loads(data.read_text(encoding="utf-8"))
    sections: dict[str, str] = content["sections"]
    entries: list[dict[str, Any]] = content["fact"]
    found = Facts()
    holders = holders_by_id(marked_tests(tests, MARKER))
    seen: set[str] = set()
    for entry in entries:
        prefix = entry["id"].partition(".")[0]
        fact = Fact(
            fact_id=entry["id"],
            section=sections.get(prefix, ""),
            says=entry["says"],
            used_by=tuple(entry.get("used_by", ())),
            kept_for=entry.get("kept_for", ""),
            tests=tuple(sorted(holders.pop(entry["id"], ()))),
        )
        if fact.fact_id in seen:
            found.problems.append(f"{fact.fact_id} is there twice")
            continue
        seen.add(fact.fact_id)
        found.facts.append(fact)
        found.problems += _problems_of(fact, source)
    for fact_id, tested_by in holders.items():
        found.problems.append(f"no fact {fact_id}, named by {', '.join(sorted(tested_by))}")
    return found


def _problems_of(fact: Fact, source: Path) -> list[str]:
    problems: list[str] = []
    if not fact.section:
        problems.append(f"{fact.fact_id} begins like no section")
    if not fact.tests:
        problems.append(f"{fact.fact_id} has no test")
    if bool(fact.used_by) == bool(fact.kept_for):
        problems.append(f"{fact.fact_id} needs either used_by or kept_for")
    problems += [
        f"{fact.fact_id} names {module}, which does not exist"
        for module in fact.used_by
        if not (source / module).is_file()
    ]
    return problems


def render_page(facts: Facts) -> str:
    """Return the page about the facts."""
    lines = [
        "# What the adapter takes for true about the SDK, and which test holds it",
        "",
        "Written by `python3 -m packages.agents.openai-agents.tests.sdk_facts --write` from",
        "`tests/sdk_facts.toml` and the `sdk_fact` markers of the tests.",
        "",
        "When a test fails after an update of the SDK, its facts say which modules to open.",
        "",
        f"{len(facts.facts)} facts.",
    ]
    for section in dict.fromkeys(fact.section for fact in facts.facts):
        rows = [
            (f"`{fact.fact_id}`", fact.says, _use(fact), cell_of_tests(fact.tests))
            for fact in facts.facts
            if fact.section == section
        ]
        head = ("Fact", "What is true", "Used by", "Tests")
        lines += ["", f"## {section}", "", *table(head, rows)]
    return "\n".join(lines) + "\n"


def _use(fact: Fact) -> str:
    return "<br>".join(f"`{module}`" for module in fact.used_by) or fact.kept_for


def main(arguments: list[str] | None = None) -> int:
    """Check the facts, and write the page when asked to."""
    facts = load_facts()
    return keep_page(PAGE, render_page(facts), facts.problems, arguments)


if __name__ == "__main__":
    sys.exit(main())
