"""The rules of the core and the tests that hold them: read, compared, and written as a page.

`requirements.toml` holds the rules. A test names the rules it holds by the marker
`requirement("ID", ...)`; markers are read from the source, so nothing is imported or collected.

`python packages/agents/core/tests/core_requirements.py --write` writes the page.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

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


def marked_tests(tests: Path = TESTS) -> dict[str, tuple[str, ...]]:
    """Return the ids that each test names, by `path::name`; tests without a marker are absent.

    Raises:
        ValueError: An id is not written as plain text, so it cannot be read from the source.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, function in _test_functions(tests):
        ids = [rule_id for node in function.decorator_list for rule_id in _ids(node, name)]
        if ids:
            found[name] = tuple(ids)
    return found


def load_requirements(data: Path = DATA, tests: Path = TESTS) -> Requirements:
    """Read the rules, join them with the tests, and compare both directions."""
    content = tomllib.loads(data.read_text(encoding="utf-8"))
    untested: dict[str, str] = content.get("untested", {})
    elsewhere: dict[str, list[str]] = content.get("held_elsewhere", {})
    found = Requirements()
    holders: dict[str, set[str]] = {}
    marked = marked_tests(tests)
    for test, ids in marked.items():
        for rule_id in ids:
            holders.setdefault(rule_id, set()).add(test)
    names = {name for name, _ in _test_functions(tests)}
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
        "Written by `python packages/agents/core/tests/core_requirements.py --write` from the",
        "rules in `tests/requirements.toml` and the `requirement` markers of the tests.",
        "",
        f"{len(rules)} rules: {len(held)} held by tests, {len(rules) - len(held)} not held yet.",
    ]
    area = ""
    for rule in rules:
        if rule.area != area:
            area = rule.area
            lines += ["", f"## {area}", "", "| Rule | What must hold | Tests |", "|---|---|---|"]
        tests = "<br>".join(f"`{test}`" for test in rule.tests) or "**none yet**"
        lines.append(f"| {rule.rule_id} | {rule.text.replace('|', chr(92) + '|')} | {tests} |")
    open_rules = [rule for rule in rules if rule.untested]
    if open_rules:
        lines += ["", "## Not held by a test yet", ""]
        lines += [f"- {rule.rule_id}: {rule.untested}" for rule in open_rules]
    return "\n".join(lines) + "\n"


def _test_functions(tests: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sorted(tests.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                yield f"{path.relative_to(tests).as_posix()}::{node.name}", node


def _ids(decorator: ast.expr, test: str) -> list[str]:
    if not (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr == MARKER
    ):
        return []
    ids: list[str] = []
    for argument in decorator.args:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise ValueError(f"{test} names a rule by something else than plain text")
        ids.append(argument.value)
    return ids


def main(arguments: list[str] | None = None) -> int:
    """Check the rules, and write the page when asked to."""
    parser = argparse.ArgumentParser(description="The rules of the core and their tests.")
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args(arguments)
    requirements = load_requirements()
    for problem in requirements.problems:
        print(problem, file=sys.stderr)
    if requirements.problems:
        return 1
    page = render_page(requirements)
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page:
        print(f"{PAGE.name} is not up to date; run this with --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
