from __future__ import annotations

import pytest
from kernel_testing import (
    START,
    FlowDriver,
    all_of,
    any_of,
    dispatched,
    messages,
    move,
    one,
    options,
    publishing,
    start_with,
    timer,
    waiting_for,
)

from dex_embedded._kernel.errors import InvalidRequestError
from dex_embedded._kernel.inputs import SkipTimer
from dex_embedded._kernel.state import Phase
from dex_embedded._kernel.transition import Transition
from dex_embedded._kernel.values import (
    Method,
    WaitingCondition,
    WaitingType,
)


def waiting(condition: WaitingCondition, *published: tuple[str, bytes]) -> FlowDriver:
    """A flow whose first step waits for the condition, after these messages came."""
    flow = FlowDriver()
    for name, value in published:
        flow.publish(name, value)
    flow.wait_for("A-1", condition)
    return flow


def results(
    flow: FlowDriver, step: str = "A-1"
) -> tuple[list[bool], list[tuple[bool, list[bytes]]]]:
    """What Execute is told: per timer whether it completed, per channel that and its values."""
    told = flow.hand_out(step).results
    assert told is not None
    return (
        [timer.completed for timer in told.timers],
        [(channel.completed, list(channel.values)) for channel in told.channels],
    )


def is_waiting(flow: FlowDriver, step: str = "A-1") -> bool:
    return flow.step(step).phase is Phase.WAITING


def test_a_skipped_wait_for_gives_execute_no_results() -> None:
    assert FlowDriver(start_with(options=options())).hand_out("A-1").results is None


@pytest.mark.parametrize("condition", [None, WaitingCondition(type=WaitingType.ANY_COMPLETED)])
def test_a_wait_for_without_conditions_gives_empty_results(
    condition: WaitingCondition | None,
) -> None:
    flow = waiting(condition) if condition else FlowDriver()
    if condition is None:
        flow.wait_for("A-1")
    assert results(flow) == ([], [])


def test_messages_published_before_the_wait_satisfy_it() -> None:
    flow = waiting(any_of(one("c")), ("c", b"1"))
    assert results(flow) == ([], [(True, [b"1"])])


def test_messages_a_wait_for_publishes_itself_satisfy_its_wait() -> None:
    flow = FlowDriver()
    flow.wait_for("A-1", any_of(one("c")), effects=publishing(("c", b"1")))
    assert flow.step("A-1").method is Method.EXECUTE


def test_for_one_takes_the_head_and_leaves_the_rest_in_order() -> None:
    flow = waiting(any_of(one("c")), ("c", b"1"), ("c", b"2"), ("c", b"3"))
    assert results(flow) == ([], [(True, [b"1"])])
    assert flow.channel("c") == [b"2", b"3"]


@pytest.mark.parametrize(
    ("at_least", "at_most", "pending", "taken"),
    [
        (None, None, 0, None),
        (None, None, 2, 1),
        (None, 3, 0, 0),
        (None, 3, 2, 2),
        (None, 3, 5, 3),
        (2, None, 1, None),
        (2, None, 5, 5),
        (1, 2, 5, 2),
        (1, 2, 0, None),
        (3, 3, 5, 3),
        (0, 0, 5, 0),
    ],
)
def test_bounds_say_when_a_channel_condition_is_met_and_how_much_it_takes(
    at_least: int | None, at_most: int | None, pending: int, taken: int | None
) -> None:
    flow = waiting(any_of(messages("c", at_least, at_most)), *[("c", b"m")] * pending)
    if taken is None:
        assert is_waiting(flow)
        assert len(flow.channel("c")) == pending
    else:
        assert results(flow) == ([], [(True, [b"m"] * taken)])
        assert len(flow.channel("c")) == pending - taken


def test_any_of_timer_and_channel_lets_the_message_win_when_it_comes_first() -> None:
    flow = waiting(any_of(timer(10), one("c")))
    flow.publish("c", b"1")
    assert results(flow) == ([False], [(True, [b"1"])])
    assert dispatched(flow.advance(20)) == []


def test_any_of_timer_and_channel_lets_the_timer_win_when_it_fires_first() -> None:
    flow = waiting(any_of(timer(10), messages("c", 2, 2)), ("c", b"1"))
    flow.advance(10)
    assert results(flow) == ([True], [(False, [])])
    assert flow.channel("c") == [b"1"]


def test_any_of_prefers_a_timer_to_a_channel_that_is_ready_as_well() -> None:
    flow = waiting(any_of(one("c"), timer(0)), ("c", b"1"))
    assert results(flow) == ([True], [(False, [])])


def test_any_of_takes_the_first_ready_channel_in_declaration_order() -> None:
    flow = waiting(any_of(one("c"), one("d"), one("e")), ("e", b"e"), ("d", b"d"))
    assert results(flow) == ([], [(False, []), (True, [b"d"]), (False, [])])
    assert flow.channel("e") == [b"e"]


def test_all_of_takes_from_every_channel_in_one_step_or_from_none() -> None:
    flow = waiting(all_of(one("c"), one("d")), ("c", b"c"))
    assert is_waiting(flow)
    assert flow.channel("c") == [b"c"]
    flow.publish("d", b"d")
    assert results(flow) == ([], [(True, [b"c"]), (True, [b"d"])])
    assert flow.run.channels == {}


def test_all_of_with_a_timer_remembers_that_it_fired() -> None:
    flow = waiting(all_of(timer(5), one("c")))
    transition = flow.advance(5)
    assert is_waiting(flow)
    assert transition.wake_at is None
    flow.publish("c", b"1")
    assert results(flow) == ([True], [(True, [b"1"])])


def test_two_conditions_on_one_channel_share_it_minima_first() -> None:
    condition = all_of(messages("c", 1, 3), messages("c", 2, None))
    flow = waiting(condition, *[("c", bytes([n])) for n in range(2)])
    assert is_waiting(flow)
    flow.publish("c", *[bytes([n]) for n in range(2, 7)])
    assert results(flow) == (
        [],
        [(True, [b"\0", b"\3", b"\4"]), (True, [b"\1", b"\2", b"\5", b"\6"])],
    )


def test_the_first_satisfied_combination_wins_and_only_its_members_complete() -> None:
    condition = waiting_for(
        WaitingType.ANY_COMBINATION_COMPLETED,
        timer(0, "t"),
        one("c", "c"),
        one("d", "d"),
        combinations=["t d", "c"],
    )
    flow = waiting(condition, ("c", b"c"))
    # The timer has fired, but it is not in the winning combination.
    assert results(flow) == ([False], [(True, [b"c"]), (False, [])])


def test_an_earlier_combination_wins_when_both_are_satisfied() -> None:
    condition = waiting_for(
        WaitingType.ANY_COMBINATION_COMPLETED,
        one("c", "c"),
        one("d", "d"),
        combinations=["c d", "c"],
    )
    flow = waiting(condition, ("c", b"c"), ("d", b"d"))
    assert results(flow) == ([], [(True, [b"c"]), (True, [b"d"])])


def test_one_message_wakes_exactly_the_oldest_of_two_waiting_executions() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("B", options(skip=False)), move("B", options(skip=False)))
    # The younger one starts to wait first: age is the order of the ids.
    flow.wait_for("B-2", any_of(one("c")))
    flow.wait_for("B-1", any_of(one("c")))
    flow.publish("c", b"1")
    assert is_waiting(flow, "B-2")
    assert results(flow, "B-1") == ([], [(True, [b"1"])])


def test_channel_map_instances_are_channels_of_their_own() -> None:
    flow = waiting(any_of(one("m/a%20b")), ("m/other", b"1"))
    assert is_waiting(flow)
    flow.publish("m/a%20b", b"2")
    assert results(flow) == ([], [(True, [b"2"])])


def test_the_execute_snapshot_no_longer_shows_consumed_messages() -> None:
    flow = waiting(any_of(one("c")), ("c", b"1"), ("c", b"2"))
    assert flow.hand_out("A-1").snapshot.channel_sizes == (("c", 1),)


def test_retries_of_execute_get_the_same_results() -> None:
    flow = waiting(any_of(one("c")), ("c", b"1"))
    flow.fail("A-1")
    flow.advance(1)
    assert results(flow) == ([], [(True, [b"1"])])


def test_a_timer_fires_in_whole_seconds_counted_from_the_commit_of_the_wait() -> None:
    flow = FlowDriver(now=START + 0.9)
    transition = flow.wait_for("A-1", any_of(timer(10)))
    assert transition.wake_at == START + 10
    assert dispatched(flow.advance(9.0)) == []  # 1009.9
    assert len(dispatched(flow.advance(0.1))) == 1


def test_a_wake_before_anything_is_due_changes_nothing() -> None:
    flow = waiting(any_of(timer(10)))
    transition = flow.advance(1)
    assert transition.changes == []
    assert transition.wake_at == START + 10


def test_skipping_a_timer_counts_as_firing_and_works_once() -> None:
    flow = waiting(all_of(timer(100, "t"), one("c")))
    flow.feed(SkipTimer(step_execution_id="A-1", condition_id="t"))
    with pytest.raises(InvalidRequestError, match="not pending"):
        flow.feed(SkipTimer(step_execution_id="A-1", index=0))
    flow.publish("c", b"1")
    assert results(flow) == ([True], [(True, [b"1"])])


@pytest.mark.parametrize(
    "skip",
    [
        SkipTimer(step_execution_id="A-2", index=0),
        SkipTimer(step_execution_id="A-1", index=1),
        SkipTimer(step_execution_id="A-1", index=-1),
        SkipTimer(step_execution_id="A-1", condition_id="no"),
        SkipTimer(step_execution_id="A-1"),
    ],
)
def test_skipping_a_timer_that_is_not_there_is_refused(skip: SkipTimer) -> None:
    flow = waiting(any_of(timer(100, "t")))
    with pytest.raises(InvalidRequestError, match="does not exist"):
        flow.feed(skip)


def test_locals_of_wait_for_reach_execute() -> None:
    flow = FlowDriver()
    flow.wait_for("A-1", step_locals=(("k", b"v"),))
    assert flow.hand_out("A-1").locals == (("k", b"v"),)


def test_the_run_is_idle_exactly_while_every_execution_waits() -> None:
    flow = FlowDriver()
    assert not flow.run.is_idle
    flow.wait_for("A-1", any_of(one("c")))
    assert flow.run.is_idle
    call = flow.start_rpc()
    assert not flow.run.is_idle
    del call
    flow.publish("c", b"1")
    assert not flow.run.is_idle


INVALID: list[tuple[str, WaitingCondition]] = [
    ("no type", WaitingCondition(type=WaitingType.UNSPECIFIED)),
    ("negative", any_of(timer(-1))),
    ("negative", any_of(messages("c", -1, None))),
    ("channel name is empty", any_of(one(""))),
    ("at least 3", any_of(messages("c", 3, 2))),
    ("given twice", any_of(timer(1, "x"), one("c", "x"))),
    ("need the type", waiting_for(WaitingType.ALL_COMPLETED, one("c", "x"), combinations=["x"])),
    ("has no id", waiting_for(WaitingType.ANY_COMBINATION_COMPLETED, one("c"), combinations=["x"])),
    (
        "undeclared",
        waiting_for(WaitingType.ANY_COMBINATION_COMPLETED, one("c", "x"), combinations=["y"]),
    ),
    (
        "given twice",
        waiting_for(WaitingType.ANY_COMBINATION_COMPLETED, one("c", "x"), combinations=["x x"]),
    ),
    (
        "is empty",
        waiting_for(WaitingType.ANY_COMBINATION_COMPLETED, one("c", "x"), combinations=[""]),
    ),
    ("no combinations", waiting_for(WaitingType.ANY_COMBINATION_COMPLETED, one("c", "x"))),
]


@pytest.mark.parametrize(("problem", "condition"), INVALID)
def test_an_invalid_condition_fails_the_attempt_and_is_retried(
    problem: str, condition: WaitingCondition
) -> None:
    flow = FlowDriver()
    flow.wait_for("A-1", condition)
    step = flow.step("A-1")
    assert (step.method, step.phase) == (Method.WAIT_FOR, Phase.BACKING_OFF)
    assert step.invocation is not None
    assert step.invocation.last_failure is not None
    assert problem in step.invocation.last_failure.detail


def test_a_sub_flow_condition_is_refused_by_name_and_not_retried() -> None:
    flow = FlowDriver()
    flow.wait_for("A-1", WaitingCondition(type=WaitingType.ANY_COMPLETED, sub_flow_count=1))
    assert not flow.run.is_active
    assert "does not support SubFlow conditions" in flow.run.error_message


def test_every_transition_reports_when_the_run_wants_to_wake_next() -> None:
    flow = FlowDriver(start_with(options=options()))
    flow.execute("A-1", move("B", options(skip=False)), move("C", options(skip=False)))
    flow.wait_for("B-1", any_of(timer(50)))
    transition: Transition = flow.wait_for("C-1", any_of(timer(20)))
    assert transition.wake_at == START + 20
    assert flow.advance(20).wake_at == START + 50
