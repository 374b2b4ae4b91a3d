"""What the items of a run are as plain data, and what input may be added to a stopped run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import Agent, AgentsException, Runner, UserError, function_tool
from sdk_runs import USER, restored, soft_stopped, stored
from stepped_session import as_text, call, response, says, script
from wire_conditions import Api, Way
from wire_session import provider


@function_tool
def look(x: int) -> str:
    """Look."""
    return f"saw {x}"


@function_tool(needs_approval=True)
def pay(x: int) -> str:
    """Pay."""
    return f"paid {x}"


@pytest.mark.sdk_fact("item.plain-data-replays-unchanged")
@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_items_that_went_through_json_make_the_same_request(api: Api) -> None:
    turn = [
        {
            "reasoning": ["Hm."],
            "text": "wait",
            "tool_calls": [{"name": "look", "arguments": {"x": 1}}],
        },
        {"text": "done"},
    ]
    more = [{"role": "user", "content": "more"}]
    key = "input" if api == "responses" else "messages"
    way, again = Way(api, streams=False), {"text": "again"}
    async with provider(way, *turn, more_turns=(again,)) as (server, config):
        agent = Agent(name="A", tools=[look])
        first = await Runner.run(agent, USER, run_config=config)
        plain = [json.loads(json.dumps(item.to_input_item())) for item in first.new_items]
        items: list[Any] = [*first.to_input_list(), *more]
        replayed: list[Any] = [*USER, *plain, *more]
        await Runner.run(agent, items, run_config=config)
        await Runner.run(agent, replayed, run_config=config)
        expected, sent = (request.body[key] for request in server.requests[-2:])
    assert as_text(sent) == as_text(expected)
    assert len(sent) > len(USER) + 3


@pytest.mark.sdk_fact("item.unset-status-is-left-out")
async def test_a_status_that_was_never_set_is_not_in_the_item() -> None:
    model = script(response(call("look", "c1", x=1)), response(says("done")))
    result = await Runner.run(Agent(name="A", model=model, tools=[look]), USER)
    [item] = [item for item in result.new_items if item.type == "tool_call_item"]
    raw: Any = item.raw_item
    assert raw.status is None
    assert "status" not in item.to_input_item()


@pytest.mark.sdk_fact("item.pending-calls-are-no-input")
async def test_the_item_of_a_pending_call_cannot_become_input() -> None:
    model = script(response(call("pay", "c1", x=1)))
    result = await Runner.run(Agent(name="A", model=model, tools=[pay]), USER)
    [item] = [item for item in result.new_items if item.type == "tool_approval_item"]
    with pytest.raises(AgentsException):
        item.to_input_item()
    assert "tool_approval_item" not in json.dumps(result.to_input_list())


@pytest.mark.sdk_fact("item.input-can-be-added-to-a-stopped-run")
async def test_added_input_stands_behind_the_results_and_is_an_item_of_the_run() -> None:
    model = script(response(call("pay", "c1", x=1)), response(says("done")))
    agent = Agent(name="A", model=model, tools=[pay])
    state = await restored(agent, await soft_stopped(agent, USER))
    state.add_input("hurry")
    state = await restored(agent, json.loads(json.dumps(state.to_json())))
    state.approve(state.get_interruptions()[0])
    result = await soft_stopped(agent, state)
    kinds = [item.get("type") or item["content"] for item in model.calls[1].input]
    assert kinds == ["go", "function_call", "function_call_output", "hurry"]
    assert "input_item" in [item.type for item in result.new_items]
    assert stored(result)["pending_input"] == []


@pytest.mark.sdk_fact("item.input-is-refused-where-a-result-may-end-the-run")
async def test_input_is_refused_where_the_result_of_a_tool_may_end_the_run() -> None:
    model = script(response(call("pay", "c1", x=1)))
    agent = Agent(name="A", model=model, tools=[pay], tool_use_behavior="stop_on_first_tool")
    state = await restored(agent, await soft_stopped(agent, USER))
    with pytest.raises(UserError):
        state.add_input("hurry")
