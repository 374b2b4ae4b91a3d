"""A durable session does what a plain run does, also when its processes are killed.

Agent graphs and conversations are generated from a seed and run twice: by the framework alone, and
as a session in which every Step is a process of its own and some are killed while they work. Every
request to the model, every item, every error and the usage must be equal, up to the documented
differences.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from equivalence_differences import (
    DOCUMENTED,
    Documented,
    describe,
    explanation,
    find_differences,
)
from equivalence_plans import FAILING_TOOLS, GUARDED_TOOLS, Plan, plan_number
from equivalence_runs import Trace, run_durable, run_plain, warm_up

SEED = int(os.environ.get("EQUIVALENCE_SEED", "20260101"))
RUNS = 25
# At least half of the runs hold a kill.
THOROUGH_RUNS = 2 * int(os.environ.get("DEX_CRASH_KILLS", "200"))


async def both(plan: Plan) -> tuple[Trace, Trace]:
    with tempfile.TemporaryDirectory() as folder:
        return (
            await run_plain(plan, Path(folder) / "plain.jsonl"),
            await run_durable(plan, Path(folder) / "durable.jsonl"),
        )


def has_parallel_calls(trace: Trace) -> bool:
    """Whether a model saw two calls of one response."""
    return any(
        one.get("type") == other.get("type") == "function_call"
        for request in trace.requests
        for one, other in pairwise(request["input"])
    )


def has_guardrail(plan: Plan, trace: Trace) -> bool:
    """Whether a guardrail of an agent or a tool had something to judge."""
    guarded = {f"I am {agent.name}" for agent in plan.agents if agent.has_guardrails}
    # An input guardrail of the first agent that trips keeps every request back.
    return (
        plan.agents[0].has_guardrails
        or any(request["instructions"] in guarded for request in trace.requests)
        or any(record.tool_name in GUARDED_TOOLS for record in trace.records)
    )


#: What must really have happened in the generated runs, each in at least this share of them.
CONTENTS: dict[str, tuple[float, Callable[[Plan, Trace], bool]]] = {
    "a handoff": (0.15, lambda _, t: len({r["instructions"] for r in t.requests}) > 1),
    "an approval": (0.15, lambda _, t: bool(t.asked)),
    "parallel calls": (0.15, lambda _, t: has_parallel_calls(t)),
    "a guardrail": (0.15, has_guardrail),
    "a failing tool": (0.15, lambda _, t: any(r.tool_name in FAILING_TOOLS for r in t.records)),
    "a structured output": (
        0.15,
        lambda _, t: (
            any(r["structured"] for r in t.requests)
            or any(record.tool_name == "typed" for record in t.records)
        ),
    ),
    "a kill with work in flight": (0.5, lambda _, t: bool(t.killed)),
}


def compare_many(runs: int) -> Counter[str]:
    """Compare generated runs and count what was in them."""
    asyncio.run(warm_up())
    counts: Counter[str] = Counter()
    for number in range(runs):
        plan = plan_number(number, SEED)
        plain, durable = asyncio.run(both(plan))
        found = find_differences(plain, durable)
        unexplained = [d for d in found if explanation(d, plan) is None]
        assert not unexplained, "\n".join(
            [f"plan {number} of seed {SEED}", *map(describe, unexplained), repr(plan)]
        )
        counts["runs"] += 1
        counts["equal"] += not found
        counts.update({f"differs: {entry.name}" for d in found if (entry := explanation(d, plan))})
        for name, (_, contains) in CONTENTS.items():
            counts[name] += contains(plan, durable)
    return counts


def check_counts(counts: Counter[str]) -> None:
    runs = counts["runs"]
    print(f"seed {SEED}: {dict(counts)}")
    assert counts["equal"] >= 0.8 * runs, counts
    for name, (share, _) in CONTENTS.items():
        assert counts[name] >= share * runs, f"{name}: {counts}"


@pytest.mark.timeout(600)
def test_generated_runs_are_equal_up_to_the_documented_differences() -> None:
    counts = compare_many(RUNS)
    check_counts(counts)


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_many_generated_runs_are_equal_up_to_the_documented_differences() -> None:
    check_counts(compare_many(THOROUGH_RUNS))


@pytest.mark.parametrize("entry", DOCUMENTED, ids=lambda entry: entry.name)
async def test_each_documented_difference_is_real(entry: Documented) -> None:
    plain, durable = await both(entry.witness)
    found = find_differences(plain, durable)
    assert found, "this is no difference any more: take the entry out"
    explained = {explanation(d, entry.witness) for d in found}
    assert None not in explained
    assert entry in explained
    assert entry.reason


def test_a_difference_is_seen_wherever_it_is() -> None:
    def trace(**changed: Any) -> Trace:
        request: dict[str, Any] = {
            "place": [0, 0],
            "instructions": "x",
            "input": [
                {"role": "user", "content": "hi"},
                {"type": "function_call_output", "call_id": "c1", "output": "one"},
                {"type": "function_call_output", "call_id": "c2", "output": "two"},
            ],
            "tools": ["echo"],
        }
        request.update(changed.pop("request", {}))
        fields: dict[str, Any] = {
            "requests": [request],
            "items": [request["input"]],
            "tokens": [(1, 15)],
            **changed,
        }
        return Trace(**fields)

    reordered = [trace().requests[0]["input"][i] for i in (0, 2, 1)]
    changed_output = [*trace().requests[0]["input"][:2], {**reordered[1], "output": "three"}]
    for other, fields in (
        (trace(error="X"), {"error"}),
        (trace(tokens=[(2, 30)]), {"tokens"}),
        (trace(answers=["other"]), {"answers"}),
        (trace(requests=[]), {"calls"}),
        (trace(items=[]), {"turns"}),
        (trace(request={"tools": []}), {"tools"}),
        (trace(request={"place": [0, 1]}), {"calls", "place"}),
        (trace(request={"input": reordered}), {"order"}),
        (trace(request={"input": changed_output}), {"output"}),
        (trace(request={"input": reordered[:1]}), {"item"}),
    ):
        assert {d.field for d in find_differences(trace(), other)} == fields
    assert find_differences(trace(), trace()) == []
