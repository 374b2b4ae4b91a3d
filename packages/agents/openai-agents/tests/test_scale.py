"""What grows with a turn, counted: work with the calls, stored bytes with the new data."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scale_runs import PAGE_BYTES, resume_with_parallel_calls, rounds_on_a_history


async def test_case_10_the_work_of_a_resumed_step_grows_with_the_calls_and_not_their_square() -> (
    None
):
    await resume_with_parallel_calls(1, counted=True)
    few, many = [await resume_with_parallel_calls(count, counted=True) for count in (20, 80)]
    assert many.function_calls <= 1.25 * 4 * few.function_calls
    assert many.longest_callback <= 1.25 * 4 * few.longest_callback
    assert many.state_bytes <= 1.25 * 4 * few.state_bytes
    # A second of work is several million calls on any machine, so heartbeats are never that late.
    assert many.longest_callback < 250_000


async def test_case_11_the_state_of_a_turn_does_not_depend_on_the_history_before_it() -> None:
    without, with_history = [await rounds_on_a_history(3, tokens) for tokens in (0, 200_000)]
    assert without.turn.state_sizes == with_history.turn.state_sizes


@pytest.mark.parametrize("rounds", [25, pytest.param(100, marks=pytest.mark.crash)])
async def test_case_11_rounds_of_tools_store_no_page_twice(rounds: int) -> None:
    sizes = (await rounds_on_a_history(rounds, 0)).turn.state_sizes
    growth = [after - before for before, after in pairwise(sizes)]
    assert len(sizes) == rounds
    # A round adds a call and the name of its output, which the record of the call holds.
    assert max(growth) < PAGE_BYTES / 10
    first, last = sum(growth[:10]), sum(growth[-10:])
    assert last <= 1.25 * first
