"""What stepwise agent tools stand on: a nested run that stops and goes on inside the outer one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from agents import (
    Agent,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunResultStreaming,
    RunState,
    function_tool,
)
from agents.run_config import CallModelData, ModelInputData
from sdk_runs import USER, pending_ids, restored, stored
from stepped_session import call, outputs, response, says, script


@function_tool(needs_approval=True)
def look(x: int) -> str:
    """Look."""
    return f"saw {x}"


def graph(model: Any, inner_model: Any) -> Agent[Any]:
    """An agent with a gated tool and a gated agent tool, whose agent has a gated tool too."""
    inner = Agent[Any](name="Inner", model=inner_model, tools=[look])
    tool = inner.as_tool("ask", "Ask.", needs_approval=True)
    return Agent(name="Outer", model=model, tools=[tool, look])


async def one_call(agent: Agent[Any], source: Any) -> RunResultStreaming:
    """Run until one model was asked, at whatever depth."""
    running: list[RunResultStreaming] = []

    def stop(data: CallModelData[Any]) -> ModelInputData:
        running[0].cancel(mode="after_turn")
        return data.model_data

    config = RunConfig(call_model_input_filter=stop)
    running.append(Runner.run_streamed(agent, source, run_config=config))
    async for _event in running[0].stream_events():
        pass
    return running[0]


def approve(state: RunState[Any, Any], is_meant: Callable[[str], bool]) -> RunState[Any, Any]:
    for item in state.get_interruptions():
        if is_meant(item.call_id or ""):
            state.approve(item)
    return state


@pytest.mark.sdk_fact(
    "nested.one-model-call-per-step",
    "nested.run-config-is-inherited",
    "nested.usage-is-the-outer-runs",
)
async def test_a_nested_run_makes_one_model_call_per_step_over_json_states() -> None:
    model = script(
        response(call("ask", "p1", input="x"), call("look", "p2", x=2), tokens=10),
        response(says("done"), tokens=10),
    )
    inner_model = script(
        response(call("look", "n1", x=1), tokens=10), response(says("inner"), tokens=10)
    )
    agent = graph(model, inner_model)
    result = await one_call(agent, USER)
    assert pending_ids(result) == ["p1", "p2"]
    seen = [(len(model.calls), len(inner_model.calls))]
    waiting: list[list[str | None]] = []
    while result.final_output is None:
        assert len(seen) < 6
        result = await one_call(agent, approve(await restored(agent, result), lambda _id: True))
        seen.append((len(model.calls), len(inner_model.calls)))
        waiting.append(pending_ids(result))
    assert seen == [(1, 0), (1, 1), (1, 2), (2, 2)]
    assert waiting == [["n1"], [], []]
    assert sorted(outputs(model.calls[1].input)) == ["inner", "saw 2"]
    assert outputs(inner_model.calls[1].input) == ["saw 1"]
    assert result.context_wrapper.usage.total_tokens == 40


@pytest.mark.sdk_fact("nested.state-stands-in-the-outer-state")
async def test_the_state_of_a_nested_run_that_waits_is_part_of_the_outer_state() -> None:
    agent = graph(
        script(response(call("ask", "p1", input="x"))), script(response(call("look", "n1", x=1)))
    )
    result = await one_call(agent, USER)
    result = await one_call(agent, approve(await restored(agent, result), lambda _id: True))
    [item] = result.interruptions
    assert (item.call_id, item.agent.name) == ("n1", "Inner")
    [run] = stored(result)["last_processed_response"]["functions"]
    assert run["agent_run_state"]["current_agent"]["name"] == "Inner"


@pytest.mark.sdk_fact("nested.decisions-go-through-the-state")
@pytest.mark.parametrize("is_by_state", [True, False])
async def test_a_call_of_a_nested_run_is_decided_by_the_state_and_not_by_the_outer_context(
    is_by_state: bool,
) -> None:
    inner_model = script(response(call("look", "n1", x=1)), response(says("inner")))
    agent = graph(script(response(call("ask", "p1", input="x"))), inner_model)
    result = await one_call(agent, USER)
    result = await one_call(agent, approve(await restored(agent, result), lambda _id: True))
    context = RunContextWrapper[Any](None)
    state = await restored(agent, result, context)
    [item] = state.get_interruptions()
    if is_by_state:
        state.approve(item)
    else:
        context.approve_tool(item)
    again = await one_call(agent, state)
    assert pending_ids(again) == ([] if is_by_state else ["n1"])
    assert len(inner_model.calls) == (2 if is_by_state else 1)


@pytest.mark.sdk_fact("nested.origin-tells-an-agent-tool")
async def test_a_pending_call_of_an_agent_tool_says_that_it_is_one() -> None:
    agent = graph(script(response(call("ask", "p1", input="x"))), script())
    [item] = (await one_call(agent, USER)).interruptions
    assert item.tool_origin is not None
    assert item.tool_origin.type == "agent_as_tool"


@pytest.mark.sdk_fact("nested.tool-keeps-the-agent-it-was-made-of")
async def test_a_copied_agent_tool_still_runs_the_agent_it_was_made_of() -> None:
    original = Agent[Any](name="Inner", model=script(response(says("original"))))
    tool = copy.copy(original.as_tool("ask", "Ask."))
    outer = Agent[Any](
        name="Outer",
        model=script([call("ask", "p1", input="x")]),
        tools=[tool],
        tool_use_behavior="stop_on_first_tool",
    )
    assert (await Runner.run(outer, USER)).final_output == "original"
    replaced = original.clone(model=script(response(says("copy"))))
    outer = outer.clone(
        model=script([call("ask", "p1", input="x")]), tools=[replaced.as_tool("ask", "Ask.")]
    )
    assert (await Runner.run(outer, USER)).final_output == "copy"
