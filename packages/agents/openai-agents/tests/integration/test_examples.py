"""The examples of the documentation run durably, and a worker killed between two Steps is not seen.

Every example runs once as it is and once with a kill; `make crash` kills at each of their Steps.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from example_runs import CASES, Example, ExampleStack, Place, check_killed, example_stack
from example_worker import EXAMPLES

SEED = os.environ.get("DEX_CRASH_SEED", "1")
KILLS = int(os.environ.get("DEX_CRASH_KILLS", "200"))

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
async def test_a_kill_between_two_steps_of_an_example_changes_nothing(
    examples: ExampleStack, example: Example
) -> None:
    calm = await examples.calm(example)
    place = random.Random(f"{SEED} {example.name}").choice(calm.places)
    await kill_at(examples, example, place)


@pytest.mark.crash
@pytest.mark.timeout(3600)
async def test_a_kill_between_any_two_steps_of_any_example_changes_nothing(
    examples: ExampleStack,
) -> None:
    places = [
        (example, place) for example in CASES for place in (await examples.calm(example)).places
    ]
    for example, place in random.Random(SEED).sample(places, min(KILLS, len(places))):
        await kill_at(examples, example, place)


async def kill_at(examples: ExampleStack, example: Example, place: Place) -> None:
    calm = await examples.calm(example)
    try:
        killed = await examples.play(example, f"{example.name}-{place}".replace(":", "-"), place)
        check_killed(example, calm, killed, place)
    except BaseException as error:
        error.add_note(f"example {example.name}, killed at {place}, seed {SEED}")
        raise


async def test_the_index_of_the_examples_names_each_of_them() -> None:
    index = (EXAMPLES / "README.md").read_text()
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"talk", "mcp_parts_server"}
    assert programs == {example.name for example in CASES}
    assert [name for name in sorted(programs) if f"({name}.py)" not in index] == []
