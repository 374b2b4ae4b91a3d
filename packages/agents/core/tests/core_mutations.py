"""Ways to break one rule of the core each, and how to see that its tests notice.

A mutation replaces one exact text in a copy of the package. The tests of its rule must then fail;
those without an engine are enough where there are any.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from core_requirements import TESTS, Requirements, Rule, load_requirements

DATA = TESTS / "mutations.toml"
SOURCE = TESTS.parent / "src" / "dex_agents"
ROOT = TESTS.parents[3]

#: Names, for the conftest, the folder whose copy of the package the tests must have loaded.
COPY_VARIABLE = "DEX_AGENTS_MUTATED_COPY"

#: What pytest returns when tests ran and at least one of them failed.
_TESTS_FAILED = 1


@dataclass(frozen=True)
class Mutation:
    """One way to break one rule.

    Attributes:
        rule_id: The rule that is broken.
        file: The file, relative to the package.
        text: What is there, exactly once.
        replacement: What is put there instead.
    """

    rule_id: str
    file: str
    text: str
    replacement: str


@dataclass(frozen=True)
class Verdict:
    """What the tests said.

    Attributes:
        noticed: Whether a test failed, and not just the run.
        output: The end of what pytest wrote.
    """

    noticed: bool
    output: str


def load_mutations(data: Path = DATA) -> list[Mutation]:
    """Read the mutations."""
    content = tomllib.loads(data.read_text(encoding="utf-8"))
    found = cast(list[dict[str, str]], content["mutation"])
    return [Mutation(m["rule"], m["file"], m["text"], m["replacement"]) for m in found]


def quickest_tests(rule: Rule) -> list[str]:
    """Return the tests of a rule that run without an engine, or all of them if there are none."""
    quick = [test for test in rule.tests if test.startswith("unit/")]
    return quick or list(rule.tests)


def mutated_source(mutation: Mutation, source: Path = SOURCE) -> str:
    """Return the text of the mutated file.

    Raises:
        ValueError: The text to replace is not there exactly once.
    """
    text = (source / mutation.file).read_text(encoding="utf-8")
    count = text.count(mutation.text)
    if count != 1:
        raise ValueError(
            f"{mutation.file} holds the text to replace for {mutation.rule_id} {count} times, "
            "not once"
        )
    return text.replace(mutation.text, mutation.replacement)


def copy_package(folder: Path, mutation: Mutation | None) -> None:
    """Copy the package into a folder, mutated or as it is."""
    copy = folder / "dex_agents"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    if mutation is not None:
        (copy / mutation.file).write_text(mutated_source(mutation), encoding="utf-8")


def run_tests(folder: Path, tests: Sequence[str], timeout: float = 300) -> Verdict:
    """Run tests against the copy of the package in a folder.

    Raises:
        RuntimeError: The run itself failed, so it says nothing about the rule.
    """
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        COPY_VARIABLE: str(folder),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header"]
    run = subprocess.run(
        [*command, *(str(TESTS / test) for test in tests)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    output = "\n".join((run.stdout + run.stderr).splitlines()[-15:])
    if run.returncode not in (0, _TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{output}")
    return Verdict(run.returncode == _TESTS_FAILED, output)


def rules_of(mutations: Sequence[Mutation]) -> list[Rule]:
    """Return the rules that mutations break, each once.

    Raises:
        KeyError: There is no such rule.
    """
    rules = _requirements().rules
    return [rules[rule_id] for rule_id in dict.fromkeys(m.rule_id for m in mutations)]


@functools.cache
def _requirements() -> Requirements:
    # Finding the tests of all rules reads every test module.
    return load_requirements()
