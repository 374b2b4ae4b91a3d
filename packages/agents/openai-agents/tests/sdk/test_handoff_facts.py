"""What handoffs do to a turn that is resumed between them."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, HandoffInputData, Runner, RunState, function_tool, handoff
from pydantic import BaseModel
from sdk_runs import USER, approved, soft_stopped, stored
from stepped_session import call, outputs, response, says, script


@function_tool(needs_approval=True)
def find(x: int) -> str:
    """Find."""
    return f"found {x}"


class Reason(BaseModel):
    """What a handoff is given."""

    why: str


async def to_the_end(agent: Agent[Any], steps: int) -> list[Any]:
    """Run one model call at a time, over JSON between any two; return all results."""
    results = [await soft_stopped(agent, USER)]
    while results[-1].final_output is None:
        assert len(results) < steps
        results.append(await soft_stopped(agent, await approved(agent, results[-1])))
    return results


def said(item: dict[str, Any]) -> dict[str, Any]:
    """An item, whose text is plain also where a state has written it as a part."""
    content = item.get("content")
    if isinstance(content, list) and len(content) == 1:
        return {"role": item["role"], "content": content[0]["text"]}
    return item


def last_one(data: HandoffInputData) -> HandoffInputData:
    return data.clone(input_history=(*USER, {"role": "user", "content": "filtered"}))


@pytest.mark.sdk_fact("handoff.callbacks-and-filters-work-over-steps")
@pytest.mark.parametrize("options", [{"input_filter": last_one}, {"nest_handoff_history": True}])
async def test_callback_input_filter_and_nesting_do_the_same_in_three_steps_as_in_one_run(
    options: dict[str, Any],
) -> None:
    def graph(model: Any, reasons: list[str]) -> Agent[Any]:
        async def on_handoff(_context: Any, reason: Reason) -> None:
            reasons.append(reason.why)

        b = Agent[Any](name="b", model=model)
        to_b = handoff(b, on_handoff=on_handoff, input_type=Reason, **options)
        return Agent(name="a", model=model, tools=[find], handoffs=[to_b])

    steps = [
        response(call("find", "c1", x=1)),
        response(call("transfer_to_b", "h1", why="billing")),
        response(says("b here")),
    ]
    whole_model, whole_reasons = script(*steps), list[str]()
    whole = graph(whole_model, whole_reasons)
    first = await Runner.run(whole, USER)
    state: RunState[Any, Any] = first.to_state()
    state.approve(state.get_interruptions()[0])
    await Runner.run(whole, state)
    model, reasons = script(*steps), list[str]()
    await to_the_end(graph(model, reasons), steps=3)
    assert reasons == whole_reasons == ["billing"]
    for ours, theirs in zip(model.calls, whole_model.calls, strict=True):
        assert [said(item) for item in ours.input] == [said(item) for item in theirs.input]


@pytest.mark.sdk_fact("handoff.filters-rewrite-the-input-list", "handoff.new-items-hold-the-turn")
async def test_after_a_filter_the_input_list_is_rewritten_and_new_items_hold_the_whole_turn() -> (
    None
):
    model = script(
        response(call("find", "c1", x=1)),
        response(call("transfer_to_b", "h1")),
        response(says("b here")),
    )
    b = Agent[Any](name="b", model=model)
    agent = Agent[Any](
        name="a", model=model, tools=[find], handoffs=[handoff(b, input_filter=last_one)]
    )
    last = (await to_the_end(agent, steps=3))[-1]
    assert last.to_input_list()[1] == {"role": "user", "content": "filtered"}, "not of the turn"
    kinds = [item.type for item in last.new_items if item.type != "tool_approval_item"]
    assert kinds == [
        "tool_call_item",
        "tool_call_output_item",
        "handoff_call_item",
        "handoff_output_item",
        "message_output_item",
    ]


@pytest.mark.sdk_fact("handoff.first-one-wins")
async def test_the_first_of_two_handoffs_wins_and_the_other_is_told_so() -> None:
    model = script(
        response(call("transfer_to_b", "h1"), call("transfer_to_c", "h2")), response(says("hi"))
    )
    agent = Agent[Any](
        name="a",
        model=model,
        handoffs=[Agent(name="b", model=model), Agent(name="c", model=model)],
    )
    result = await Runner.run(agent, USER)
    assert result.last_agent.name == "b"
    assert len(outputs(model.calls[1].input)) == 2


@pytest.mark.sdk_fact("handoff.equal-names-are-told-apart")
async def test_two_agents_of_one_name_that_differ_are_told_apart_in_the_state() -> None:
    model = script(response(call("go_on", "h1")), response(says("second")))
    second = Agent[Any](name="Twin", model=model, instructions="second")
    first = Agent[Any](
        name="Twin",
        model=model,
        instructions="first",
        handoffs=[handoff(second, tool_name_override="go_on")],
    )
    stopped = await soft_stopped(first, USER)
    assert set(stored(stopped)["current_agent"]) > {"name"}
    result = await soft_stopped(first, await approved(first, stopped))
    assert result.final_output == "second"
    assert model.calls[1].system_instructions == "second"
