"""How a run is stopped after one model call, and what it says it used."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ModelStep
from native_calls import whole_response
from pydantic import BaseModel
from sdk_runs import USER, approved, pending_ids, restored, soft_stopped, stored
from stepped_session import call, outputs, response, says, script

AGAIN = "next_step_run_again"


@function_tool
def ping(x: int) -> str:
    """Answer."""
    return f"pong {x}"


@function_tool(needs_approval=True)
def pay(x: int) -> str:
    """Pay."""
    return f"paid {x}"


def next_step(result: Any) -> str | None:
    step = stored(result)["current_step"]
    return None if step is None else step["type"]


@pytest.mark.sdk_fact("call.stop-before-the-run-looks-finished")
async def test_a_soft_stop_before_the_run_begins_makes_no_call_and_looks_like_an_end() -> None:
    model = script(response(says("done")))
    agent = Agent(name="A", model=model)
    result = Runner.run_streamed(agent, USER)
    result.cancel(mode="after_turn")
    async for _event in result.stream_events():
        pass
    assert len(model.calls) == 0
    assert result.final_output is None
    assert next_step(result) is None, "as after a final answer"
    resumed = await Runner.run(agent, await restored(agent, result))
    assert resumed.final_output == "done"


@pytest.mark.sdk_fact("call.stop-leaves-outcomes-alone")
async def test_a_soft_stop_at_the_first_event_leaves_answers_and_pending_calls_alone() -> None:
    model = script(response(call("pay", "c1", x=1)), response(says("done")))
    agent = Agent(name="A", model=model, tools=[pay])
    first = await soft_stopped(agent, USER)
    assert pending_ids(first) == ["c1"]
    second = await soft_stopped(agent, await approved(agent, first))
    assert second.final_output == "done"
    assert next_step(second) is None


@pytest.mark.sdk_fact("call.handoff-stops-before-the-target")
async def test_a_handoff_ends_the_call_and_the_target_makes_the_next_one() -> None:
    model = script(response(call("transfer_to_b", "h1")), response(says("b here")))
    agent = Agent(
        name="a", model=model, handoffs=[Agent(name="b", model=model, instructions="I am b")]
    )
    first = await soft_stopped(agent, USER)
    assert (len(model.calls), next_step(first)) == (1, AGAIN)
    second = await soft_stopped(agent, await approved(agent, first))
    assert second.final_output == "b here"
    assert model.calls[1].system_instructions == "I am b"


@pytest.mark.sdk_fact("call.handoff-beside-a-call-waits")
async def test_a_handoff_beside_a_pending_call_happens_at_the_resume() -> None:
    model = script(
        response(call("pay", "c1", x=1), call("transfer_to_b", "h1")), response(says("b here"))
    )
    b = Agent(name="b", model=model)
    agent = Agent(name="a", model=model, tools=[pay], handoffs=[b])
    first = await soft_stopped(agent, USER)
    assert pending_ids(first) == ["c1"]
    assert first.last_agent.name == "a"
    second = await soft_stopped(agent, await approved(agent, first))
    assert (second.last_agent.name, second.final_output) == ("b", "b here")
    assert len(model.calls) == 2


@pytest.mark.sdk_fact("call.unknown-tool-is-one-call")
async def test_an_unknown_tool_that_is_told_to_the_model_costs_one_call() -> None:
    model = script(response(call("nobody", "c1")))
    config = RunConfig(tool_not_found_behavior="return_error_to_model")
    result = await soft_stopped(Agent(name="A", model=model), USER, run_config=config)
    assert (len(model.calls), next_step(result)) == (1, AGAIN)


class Answer(BaseModel):
    """A structured answer."""

    value: int


@pytest.mark.sdk_fact("call.empty-structured-answer-is-one-call")
async def test_an_empty_answer_where_a_structured_one_is_due_costs_one_call() -> None:
    model = script(response(says("")))
    result = await soft_stopped(Agent(name="A", model=model, output_type=Answer), USER)
    assert (len(model.calls), next_step(result)) == (1, AGAIN)


@pytest.mark.sdk_fact("call.ungated-tool-runs-and-is-one-call")
async def test_a_tool_without_a_gate_runs_before_the_soft_stop() -> None:
    model = script(response(call("ping", "c1", x=1)), response(says("done")))
    agent = Agent(name="A", model=model, tools=[ping])
    first = await soft_stopped(agent, USER)
    assert (len(model.calls), next_step(first)) == (1, AGAIN)
    await soft_stopped(agent, await approved(agent, first))
    assert outputs(model.calls[1].input) == ["pong 1"]


@pytest.mark.sdk_fact("call.empty-text-is-an-answer")
async def test_an_empty_text_ends_the_run_of_an_agent_that_answers_in_text() -> None:
    result = await Runner.run(Agent(name="A", model=script([])), USER)
    assert result.final_output == ""
    assert result.new_items == []


@pytest.mark.sdk_fact("call.one-completed-event-is-a-stream")
async def test_a_stream_of_one_completed_event_is_enough_for_a_run() -> None:
    [asks], [answers] = whole_response([call("pay", "c1", x=1)]), whole_response([says("done")])
    model = script(ModelStep(stream_events=[asks]), ModelStep(stream_events=[answers]))
    agent = Agent(name="A", model=model, tools=[pay])
    first = await soft_stopped(agent, USER)
    assert pending_ids(first) == ["c1"]
    assert (await soft_stopped(agent, await approved(agent, first))).final_output == "done"


@pytest.mark.sdk_fact("call.usage-is-cumulative")
async def test_the_usage_of_a_resumed_run_begins_where_the_state_stopped() -> None:
    model = script(
        response(call("pay", "c1", x=1), tokens=15),
        response(call("pay", "c2", x=2), tokens=26),
        response(says("done"), tokens=37),
    )
    agent = Agent(name="A", model=model, tools=[pay])
    result = await soft_stopped(agent, USER)
    totals = [result.context_wrapper.usage.total_tokens]
    for _resume in range(2):
        result = await soft_stopped(agent, await approved(agent, result))
        totals.append(result.context_wrapper.usage.total_tokens)
    assert totals == [15, 41, 78]
    assert result.context_wrapper.usage.requests == 3
