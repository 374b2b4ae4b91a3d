"""The examples of the documentation run durably, and a process killed at any moment is not seen.

Every example runs once as it is and once with a kill. The long form kills a worker before each Step
is handed out, as it begins, around its model call and its tool, before its result is sent and after
that is stored; and for approvals the engine as well. `DEX_CRASH_KILLS` of these kills are carried
out, chosen by `DEX_CRASH_SEED` so that every example has its share; 2,000 are more than there are.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
import pytest_asyncio
from example_cases import CASES, Example
from example_places import Place, check_killed, spread
from example_runs import ExampleStack, example_stack
from example_worker import EXAMPLES

SEED = os.environ.get("DEX_CRASH_SEED", "1")
KILLS = int(os.environ.get("DEX_CRASH_KILLS", "200"))
#: Where the worker is killed while the engine stands still.
BETWEEN_STEPS = ("handout.before", "commit.after")
APPROVALS = next(example for example in CASES if example.name == "human_in_the_loop")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def examples(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[ExampleStack]:
    async with example_stack(tmp_path_factory.mktemp("examples")) as stack:
        yield stack


@pytest.mark.parametrize("example", CASES, ids=lambda example: example.name)
async def test_an_example_runs_as_a_session(examples: ExampleStack, example: Example) -> None:
    calm = await examples.calm(example)
    assert len(calm.ends) == len(example.ends)
    for end, expected in zip(calm.ends, example.ends, strict=True):
        assert end == expected or (expected.endswith(": ") and end.startswith(expected))
    assert calm.bodies == example.bodies


@pytest.mark.parametrize("example", CASES, ids=lambda example: example.name)
async def test_a_kill_at_some_moment_of_an_example_changes_nothing(
    examples: ExampleStack, example: Example
) -> None:
    places = await worker_places(examples, example)
    (place,) = spread({example.name: places}, 1, SEED)
    await kill_at(examples, example, place)


@pytest.mark.crash
@pytest.mark.timeout(7200)
async def test_a_kill_at_any_moment_of_any_example_changes_nothing(examples: ExampleStack) -> None:
    chosen = spread(
        {
            example.name: [(example, place) for place in await worker_places(examples, example)]
            for example in CASES
        },
        KILLS,
        SEED,
    )
    await kill_at_each(examples, chosen)


@pytest.mark.crash
@pytest.mark.timeout(3600)
async def test_a_kill_of_the_engine_at_any_moment_of_an_approval_changes_nothing(
    examples: ExampleStack,
) -> None:
    if not examples.stack.engine.has_fault_places:
        pytest.skip("this engine cannot be killed at a place")
    calm = await examples.calm(APPROVALS)
    places: dict[str, list[tuple[Example, Place]]] = {}
    for place in calm.engine_places_to_kill_at:
        places.setdefault(place.moment, []).append((APPROVALS, replace(place, victim="engine")))
    assert len(places) == 4, "handed out and committed, before and after"
    await kill_at_each(examples, spread(places, max(1, KILLS // 5), SEED))


async def worker_places(examples: ExampleStack, example: Example) -> list[Place]:
    """Return every moment of an example at which its worker can be killed."""
    calm = await examples.calm(example)
    assert {place.moment for place in calm.places} >= {"begins", "ends"}
    return [
        *calm.places,
        *(place for place in calm.engine_places_to_kill_at if place.moment in BETWEEN_STEPS),
    ]


async def kill_at_each(examples: ExampleStack, chosen: list[tuple[Example, Place]]) -> None:
    """Kill at one place after the other and print what was done."""
    started = time.monotonic()
    done: Counter[str] = Counter()
    for example, place in chosen:
        await kill_at(examples, example, place)
        done[place.moment] += 1
    print(f"{len(chosen)} kills in {time.monotonic() - started:.0f} s, seed {SEED}: {dict(done)}")


async def kill_at(examples: ExampleStack, example: Example, place: Place) -> None:
    calm = await examples.calm(example)
    try:
        check_killed(example, calm, await examples.play(example, place), place)
    except BaseException as error:
        error.add_note(f"example {example.name}, killed at {place}, seed {SEED}")
        raise


async def test_the_index_of_the_examples_names_each_of_them() -> None:
    index = (EXAMPLES / "README.md").read_text()
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"talk", "mcp_parts_server"}
    assert programs == {example.name for example in CASES}
    assert [name for name in sorted(programs) if f"({name}.py)" not in index] == []
