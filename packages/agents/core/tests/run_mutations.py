"""Break the rules of the core one at a time and see that their tests fail.

`python packages/agents/core/tests/run_mutations.py [--id ID ...] [--list]`, one process at a time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from core_mutations import (
    Mutation,
    copy_package,
    load_mutations,
    quickest_tests,
    rules_of,
    run_tests,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the mutations; 0 when each was noticed."""
    parser = argparse.ArgumentParser(description="Break the core's rules and run their tests.")
    parser.add_argument("--id", action="append", dest="ids", help="only mutations of this rule")
    parser.add_argument("--list", action="store_true", help="say what would be done, and end")
    options = parser.parse_args(arguments)
    mutations = [m for m in load_mutations() if not options.ids or m.rule_id in options.ids]
    if not mutations:
        print(f"no mutation of {', '.join(options.ids or [])}", file=sys.stderr)
        return 2
    if options.list:
        for mutation in mutations:
            print(f"{mutation.rule_id} {mutation.file}")
        return 0
    return _run(mutations)


def _run(mutations: list[Mutation]) -> int:
    rules = {rule.rule_id: rule for rule in rules_of(mutations)}
    tests = list(dict.fromkeys(t for rule in rules.values() for t in quickest_tests(rule)))
    with tempfile.TemporaryDirectory() as folder:
        copy_package(Path(folder), None)
        plain = run_tests(Path(folder), tests, timeout=1800)
    if plain.noticed:
        print(f"the tests fail without any mutation:\n{plain.output}", file=sys.stderr)
        return 2
    missed = 0
    for mutation in mutations:
        with tempfile.TemporaryDirectory() as folder:
            copy_package(Path(folder), mutation)
            try:
                verdict = run_tests(Path(folder), quickest_tests(rules[mutation.rule_id]))
                said = "noticed" if verdict.noticed else "MISSED"
            except RuntimeError as error:
                verdict, said = None, f"BROKEN {error}"
        missed += verdict is None or not verdict.noticed
        print(f"{mutation.rule_id} {mutation.file}: {said}", flush=True)
    print(f"{len(mutations) - missed} of {len(mutations)} mutations noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
