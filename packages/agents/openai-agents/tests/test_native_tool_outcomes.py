"""Calls of custom, shell and apply-patch tools that fail, or that wait for a person."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, Runner, RunState, function_tool
from native_calls import whole
from native_kit import (
    CALLS,
    OUTPUT_TYPES,
    USER,
    Kit,
    assert_same_outputs,
    assert_same_requests,
    both_ways,
    every_kind,
    fail,
    output_of,
)
from stepped_session import call, says, script, session_of

from dex_agents import ToolCallStatus, ToolEffect, ToolExecutionError, ToolPolicy


@every_kind
async def test_a_failing_read_is_tried_three_times_and_told_as_in_a_plain_run(kind: str) -> None:
    kit = Kit(fail)
    plain_model, model, turn = await both_ways(kit.agent, CALLS[kind])
    assert_same_requests(plain_model, model)
    assert kit.given == ["one"] * 4, "once plain, three times in the session"
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert turn.records["c1"].error == "ValueError: no one"


@every_kind
async def test_a_failing_write_is_unknown_and_says_so_in_the_form_of_its_kind(kind: str) -> None:
    kit = Kit(fail)
    model = script(whole(CALLS[kind]), whole(says("done")))
    turn = await session_of(kit.agent(model), default_effect=ToolEffect.UNCLASSIFIED).turn("go")
    assert kit.given == ["one"], "a single attempt"
    assert turn.records["c1"].status is ToolCallStatus.OUTCOME_UNKNOWN
    output = output_of(model)
    assert (output["type"], output["call_id"]) == (OUTPUT_TYPES[kind], "c1")
    assert "not known" in str(output["output"])
    if kind == "patch":
        assert output["status"] == "failed"
    if kind == "shell":
        assert output["output"][0]["outcome"] == {"type": "exit", "exit_code": 1}


@every_kind
async def test_a_tool_may_say_that_it_did_nothing(kind: str) -> None:
    def refuse(_text: str) -> Any:
        raise ToolExecutionError("nothing was done")

    model = script(whole(CALLS[kind]), whole(says("done")))
    turn = await session_of(
        Kit(refuse).agent(model), default_effect=ToolEffect.NON_IDEMPOTENT_WRITE
    ).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert "nothing was done" in str(output_of(model)["output"])


@every_kind
async def test_a_person_is_asked_for_a_tool_without_a_policy(kind: str) -> None:
    model = script(whole(CALLS[kind]), whole(says("done")))
    session = session_of(Kit().agent(model), default_effect=ToolEffect.UNCLASSIFIED)
    await session.turn("go")
    assert session.asked == ["c1"]


@every_kind
@pytest.mark.parametrize("words", [None, "Not this one."])
async def test_a_rejected_call_looks_as_in_a_plain_run(kind: str, words: str | None) -> None:
    kit = Kit(options={"needs_approval": True})
    steps = [whole(CALLS[kind]), whole(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    plain = await Runner.run(kit.agent(plain_model), list(USER))
    state: RunState[Any, Any] = plain.to_state()
    [item] = plain.interruptions
    state.reject(item, rejection_message=words)
    await Runner.run(kit.agent(plain_model), state)
    session = session_of(kit.agent(model), answer=lambda _record: words or False)
    await session.turn("go")
    assert session.asked == ["c1"]
    assert kit.given == []
    assert_same_requests(plain_model, model)


@every_kind
async def test_a_tools_own_rule_is_asked_with_what_it_gets_in_a_plain_run(kind: str) -> None:
    asked: list[Any] = []

    def rule(_context: Any, what: Any, call_id: str) -> bool:
        shown = what if isinstance(what, str) else (getattr(what, "commands", None) or what.path)
        asked.append((type(what).__name__, shown, call_id))
        return True

    kit = Kit(options={"needs_approval": rule})
    plain_model = script(whole(CALLS[kind]))
    await Runner.run(kit.agent(plain_model), list(USER))
    model = script(whole(CALLS[kind]), whole(says("done")))
    session = session_of(kit.agent(model))
    await session.turn("go")
    assert asked == [asked[0]] * 2
    assert session.asked == ["c1"]


@every_kind
async def test_a_rule_that_raises_asks_a_person(kind: str) -> None:
    def rule(*_: Any) -> bool:
        raise ValueError("broken")

    model = script(whole(CALLS[kind]), whole(says("done")))
    session = session_of(Kit(options={"needs_approval": rule}).agent(model))
    await session.turn("go")
    assert session.asked == ["c1"]


@every_kind
@pytest.mark.parametrize(
    "decision", [{"approve": True}, {"approve": False}, {"approve": False, "reason": "never"}]
)
async def test_the_applications_own_decision_needs_no_person(
    kind: str, decision: dict[str, Any]
) -> None:
    kit = Kit(options={"needs_approval": True, "on_approval": lambda *_: decision})
    plain_model, model, turn = await both_ways(kit.agent, CALLS[kind], answer=lambda _record: "no")
    assert_same_requests(plain_model, model)
    assert list(turn.records) == (["c1"] if decision["approve"] else [])
    assert kit.given == (["one"] * 2 if decision["approve"] else [])


async def test_a_decision_against_one_call_leaves_the_others_to_the_session() -> None:
    @function_tool
    def ping() -> str:
        """Answer."""
        return "pong"

    kit = Kit(options={"needs_approval": True, "on_approval": lambda *_: {"approve": False}})

    def agent(model: Any) -> Agent[Any]:
        return Agent(name="A", model=model, tools=[*kit.tools(), ping])

    plain_model, model, turn = await both_ways(agent, CALLS["shell"], call("ping", "f1"))
    assert_same_outputs(plain_model, model)
    assert list(turn.records) == ["f1"]


async def test_a_decision_does_not_lift_what_a_policy_asks_for() -> None:
    kit = Kit(options={"needs_approval": True, "on_approval": lambda *_: {"approve": True}})
    model = script(whole(CALLS["shell"]), whole(says("done")))
    session = session_of(
        kit.agent(model), policies={"shell": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)}
    )
    await session.turn("go")
    assert session.asked == ["c1"]
