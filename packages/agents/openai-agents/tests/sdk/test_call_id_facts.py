"""What the SDK makes of tool call ids that come up twice."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from agents import Agent, MaxTurnsExceeded, ModelBehaviorError, Runner, function_tool
from sdk_runs import USER, pending_ids
from stepped_session import call, response, says, script
from wire_conditions import Way
from wire_session import scripted

CHAT = Way("chat", streams=False)


def it(call_id: str, x: int) -> Any:
    return call("it", call_id, x=x)


def tool_that_logs(ran: list[int], **options: Any) -> Any:
    def it(x: int) -> str:
        """Do it."""
        ran.append(x)
        return f"did {x}"

    return function_tool(it, **options)


@pytest.mark.sdk_fact("ids.one-id-one-call")
@pytest.mark.parametrize("needs_approval", [False, True])
async def test_an_id_with_other_arguments_in_the_same_response_is_refused(
    needs_approval: bool,
) -> None:
    ran: list[int] = []
    model = script(response(it("c1", 1), it("c1", 2)))
    tool = tool_that_logs(ran, needs_approval=needs_approval)
    with pytest.raises(ModelBehaviorError):
        await Runner.run(Agent(name="A", model=model, tools=[tool]), USER)
    assert ran == []


@pytest.mark.sdk_fact("ids.one-id-one-call")
async def test_an_id_with_other_arguments_in_a_later_response_is_refused() -> None:
    ran: list[int] = []
    model = script(response(it("c1", 1)), response(it("c1", 2)))
    with pytest.raises(ModelBehaviorError):
        await Runner.run(Agent(name="A", model=model, tools=[tool_that_logs(ran)]), USER)
    assert ran == [1]


@pytest.mark.sdk_fact("ids.exact-repeat-is-dropped")
async def test_a_call_repeated_exactly_is_made_once_and_stands_once_in_the_input() -> None:
    ran: list[int] = []
    model = script(
        response(it("c1", 1), it("c1", 1)), response(it("c1", 1)), response(says("done"))
    )
    result = await Runner.run(Agent(name="A", model=model, tools=[tool_that_logs(ran)]), USER)
    assert result.final_output == "done"
    assert ran == [1]
    assert [i["call_id"] for i in model.calls[2].input if "call_id" in i] == ["c1", "c1"]


@pytest.mark.sdk_fact("ids.exact-repeat-is-dropped")
async def test_a_call_repeated_exactly_waits_once() -> None:
    tool = tool_that_logs([], needs_approval=True)
    model = script(response(it("c1", 1), it("c1", 1)))
    result = await Runner.run(Agent(name="A", model=model, tools=[tool]), USER)
    assert pending_ids(result) == ["c1"]


@pytest.mark.sdk_fact("ids.empty-id-is-refused")
async def test_a_call_without_an_id_is_refused() -> None:
    ran: list[int] = []
    model = script(response(it("", 1)))
    with pytest.raises(ModelBehaviorError):
        await Runner.run(Agent(name="A", model=model, tools=[tool_that_logs(ran)]), USER)
    assert ran == []


@pytest.mark.sdk_fact("ids.repeat-over-turns-reorders-the-input")
async def test_an_id_of_an_earlier_turn_takes_the_earlier_call_out_of_the_input() -> None:
    model = script(
        response(it("c1", 1)),
        response(says("one", "m1")),
        response(it("c1", 2)),
        response(says("two", "m2")),
    )
    agent = Agent(name="A", model=model, tools=[tool_that_logs([])])
    first = await Runner.run(agent, USER)
    await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "more"}])
    shape = [i.get("arguments") or i.get("output") or i.get("role") for i in model.calls[3].input]
    assert shape == ["user", '{"x":2}', "assistant", "user", "did 2"]


@pytest.mark.sdk_fact("ids.repeat-over-turns-breaks-chat-requests")
async def test_a_chat_provider_that_repeats_ids_is_sent_results_without_a_call() -> None:
    def turn(x: int) -> dict[str, Any]:
        asks = {"tool_calls": [{"name": "it", "arguments": {"x": x}, "call_id": "call_0"}]}
        return {"replies": [asks, {"text": "done"}]}

    async with scripted(CHAT, {"turns": [turn(1), turn(2)]}) as (server, config):
        agent = Agent(name="A", tools=[tool_that_logs([])])
        first = await Runner.run(agent, USER, run_config=config)
        items: list[Any] = [*first.to_input_list(), {"role": "user", "content": "more"}]
        with suppress(MaxTurnsExceeded):  # The server does not know the conversation any more.
            await Runner.run(agent, items, run_config=config, max_turns=2)
        messages: list[Any] = server.requests[3].body["messages"]
    asked: set[str] = set()
    orphans = 0
    for message in messages:
        if message["role"] != "assistant":
            orphans += message["role"] == "tool" and message["tool_call_id"] not in asked
            asked = asked if message["role"] == "tool" else set()
            continue
        asked = {one["id"] for one in message.get("tool_calls") or []}
    assert orphans >= 1, messages
