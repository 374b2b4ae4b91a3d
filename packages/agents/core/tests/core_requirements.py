"""The rules of the core and the tests that hold them: read, compared, and written as a page.

`requirements.toml` holds the rules. A test names the rules it holds by the marker
`requirement("ID", ...)`.

`python3 -m packages.agents.core.tests.core_requirements --write` writes the page.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tools.marked_tests import (
    cell_of_tests,
    holders_by_id,
    keep_page,
    marked_tests,
    names_of_tests,
    table,
)

TESTS = Path(__file__).resolve().parent
DATA = TESTS / "requirements.toml"
PAGE = TESTS.parent / "REQUIREMENTS.md"
MARKER = "requirement"


@dataclass(frozen=True)
class Rule:
    """One rule of the core.

    Attributes:
        rule_id: Its id, for example `CORE-EFFECT-03`.
        area: Title of the part of the core it belongs to.
        text: What must hold.
        untested: Why no test holds it yet; empty when one does.
        tests: The tests that hold it, as `path::name` under the tests folder, sorted.
    """

    rule_id: str
    area: str
    text: str
    untested: str = ""
    tests: tuple[str, ...] = ()


@dataclass
class Requirements:
    """The rules, and what is wrong between them and the tests.

    Attributes:
        rules: The rules by id, in the order of the data.
        problems: What does not fit together, one sentence each.
    """

    rules: dict[str, Rule] = field(default_factory=dict[str, Rule])
    problems: list[str] = field(default_factory=list[str])


def load_requirements(data: Path = DATA, tests: Path = TESTS) -> Requirements:
    """Read the rules, join them with the tests, and compare both directions."""
    content = tomllib.loads(data.read_text(encoding="utf-8"))
    untested: dict[str, str] = content.get("untested", {})
    elsewhere: dict[str, list[str]] = content.get("held_elsewhere", {})
    found = Requirements()
    holders = holders_by_id(marked_tests(tests, MARKER))
    names = names_of_tests(tests)
    for rule_id, named in elsewhere.items():
        for test in named:
            if test not in names:
                found.problems.append(f"{rule_id} names {test}, which does not exist")
            holders.setdefault(rule_id, set()).add(test)
    for area, rules in cast(dict[str, dict[str, str]], content["rules"]).items():
        for rule_id, text in rules.items():
            if rule_id in found.rules:
                found.problems.append(f"{rule_id} is there twice")
            found.rules[rule_id] = Rule(
                rule_id,
                area,
                text,
                untested.get(rule_id, ""),
                tuple(sorted(holders.pop(rule_id, ()))),
            )
    for rule_id, tested_by in holders.items():
        found.problems.append(f"no rule {rule_id}, named by {', '.join(sorted(tested_by))}")
    found.problems += [f"untested {i} is no rule" for i in untested if i not in found.rules]
    for rule in found.rules.values():
        if not rule.tests and not rule.untested:
            found.problems.append(f"{rule.rule_id} has no test and no reason for that")
        if rule.tests and rule.untested:
            found.problems.append(f"{rule.rule_id} has a test, so it is not untested any more")
    return found


def render_page(requirements: Requirements) -> str:
    """Return the page about the rules."""
    rules = list(requirements.rules.values())
    held = [rule for rule in rules if rule.tests]
    lines = [
        "# What the core must do, and which test holds it",
        "",
        "Written by `python3 -m packages.agents.core.tests.core_requirements --write` from the",
        "rules in `tests/requirements.toml` and the `requirement` markers of the tests.",
        "",
        f"{len(rules)} rules: {len(held)} held by tests, {len(rules) - len(held)} not held yet.",
    ]
    for area in dict.fromkeys(rule.area for rule in rules):
        rows = [
            (rule.rule_id, rule.text, cell_of_tests(rule.tests))
            for rule in rules
            if rule.area == area
        ]
        lines += ["", f"## {area}", "", *table(("Rule", "What must hold", "Tests"), rows)]
    open_rules = [rule for rule in rules if rule.untested]
    if open_rules:
        lines += ["", "## Not held by a test yet", ""]
        lines += [f"- {rule.rule_id}: {rule.untested}" for rule in open_rules]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Check the rules, and write the page when asked to."""
    requirements = load_requirements()
    return keep_page(PAGE, render_page(requirements), requirements.problems, arguments)


if __name__ == "__main__":
    sys.exit(main())
