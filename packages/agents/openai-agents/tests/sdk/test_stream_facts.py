"""Which events a streamed run brings, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest
from agents import Agent, AgentsException, Runner, RunResultStreaming, StreamEvent, function_tool
from agents.testing import ModelStep
from openai.types.responses import ResponseOutputItemAddedEvent, ResponseReasoningItem
from sdk_runs import USER, approved
from stepped_session import call, response, says, script
from wire_conditions import Api, Way
from wire_session import provider

both_apis = pytest.mark.parametrize("api", ["responses", "chat"])


@function_tool(needs_approval=True)
def look(x: int) -> str:
    """Look."""
    return f"saw {x}"


async def events_of(result: RunResultStreaming) -> list[StreamEvent]:
    return [event async for event in result.stream_events()]


def raw(events: list[StreamEvent], kind: str) -> list[Any]:
    found = [event.data for event in events if event.type == "raw_response_event"]
    return [data for data in found if data.type == kind]


async def streamed(api: Api, reply: dict[str, Any]) -> list[StreamEvent]:
    """All events of a run that gets one reply, also of one that ends with an error."""
    events: list[StreamEvent] = []
    async with provider(Way(api, streams=True), reply) as (_server, config):
        result = Runner.run_streamed(Agent(name="A", tools=[look]), USER, run_config=config)
        with suppress(AgentsException):
            async for event in result.stream_events():
                events.append(event)
    return events


@pytest.mark.sdk_fact("stream.text-comes-as-output-text-deltas")
@both_apis
async def test_text_comes_as_output_text_deltas(api: Api) -> None:
    events = await streamed(api, {"text": "a longer answer of several pieces"})
    deltas = raw(events, "response.output_text.delta")
    assert len(deltas) > 1
    assert "".join(delta.delta for delta in deltas) == "a longer answer of several pieces"


@pytest.mark.sdk_fact("stream.refusals-come-as-refusal-deltas")
@both_apis
async def test_a_refusal_comes_as_refusal_deltas(api: Api) -> None:
    events = await streamed(api, {"refusal": "I will not."})
    deltas = raw(events, "response.refusal.delta")
    assert "".join(delta.delta for delta in deltas) == "I will not."


@pytest.mark.sdk_fact("stream.reasoning-comes-as-summary-deltas")
@both_apis
async def test_reasoning_comes_as_summary_deltas(api: Api) -> None:
    events = await streamed(api, {"reasoning": ["I should look."], "text": "a"})
    deltas = raw(events, "response.reasoning_summary_text.delta")
    assert "".join(delta.delta for delta in deltas) == "I should look."


@pytest.mark.sdk_fact("stream.raw-reasoning-comes-as-text-deltas")
async def test_the_reasoning_itself_comes_as_reasoning_text_deltas() -> None:
    thought = ResponseReasoningItem.model_validate(
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        }
    )
    agent = Agent(name="A", model=script(response(thought, says("done"))))
    events = await events_of(Runner.run_streamed(agent, USER))
    deltas = raw(events, "response.reasoning_text.delta")
    assert "".join(delta.delta for delta in deltas) == "Hm."


@pytest.mark.sdk_fact("stream.calls-are-named-before-their-arguments")
@both_apis
async def test_a_call_is_named_before_its_arguments_are_complete(api: Api) -> None:
    events = await streamed(api, {"tool_calls": [{"name": "look", "arguments": {"x": 1}}]})
    kinds = [event.data.type for event in events if event.type == "raw_response_event"]
    [added] = raw(events, "response.output_item.added")
    assert (added.item.type, added.item.name) == ("function_call", "look")
    assert added.item.call_id
    complete = kinds.index("response.function_call_arguments.delta")
    assert kinds.index("response.output_item.added") < complete


@pytest.mark.sdk_fact("stream.outputs-precede-the-models-events", "stream.approvals-are-no-events")
async def test_a_resumed_run_tells_the_result_first_and_never_an_approval() -> None:
    model = script(response(call("look", "c1", x=1)), response(says("done")))
    agent = Agent(name="A", model=model, tools=[look])
    first = Runner.run_streamed(agent, USER)
    events = await events_of(first)
    assert first.interruptions
    second = Runner.run_streamed(agent, await approved(agent, first))
    resumed = await events_of(second)
    names = [event.name for event in [*events, *resumed] if event.type == "run_item_stream_event"]
    assert names == ["tool_called", "tool_output", "message_output_created"]
    kinds = [
        event.name if event.type == "run_item_stream_event" else event.type for event in resumed
    ]
    assert kinds.index("tool_output") < kinds.index("raw_response_event")


class Endless:
    """A model that never ends its stream, and knows whether it was closed."""

    def __init__(self) -> None:
        self.started, self.closed = asyncio.Event(), asyncio.Event()
        self.model = script(ModelStep.stream(self._events))

    async def _events(self, _call: Any) -> AsyncGenerator[Any]:
        try:
            self.started.set()
            yield call_added()
            await asyncio.Event().wait()
        finally:
            self.closed.set()


def call_added() -> Any:
    return ResponseOutputItemAddedEvent(
        type="response.output_item.added",
        sequence_number=0,
        output_index=0,
        item=call("look", "c1", x=1),
    )


@pytest.mark.sdk_fact("stream.cancelling-the-consumer-ends-the-run")
async def test_cancelling_the_task_that_reads_ends_the_run_and_closes_the_models_stream() -> None:
    endless = Endless()
    result = Runner.run_streamed(Agent(name="A", model=endless.model), USER)
    reading = asyncio.create_task(events_of(result))
    await asyncio.wait_for(endless.started.wait(), 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.wait_for(endless.closed.wait(), 10)


@pytest.mark.sdk_fact("stream.leaving-the-loop-leaves-the-run")
async def test_leaving_the_loop_lets_the_run_go_on_until_it_is_cancelled() -> None:
    endless = Endless()
    result = Runner.run_streamed(Agent(name="A", model=endless.model), USER)
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            break
    for _turn in range(20):
        await asyncio.sleep(0)
    assert not endless.closed.is_set()
    assert result.run_loop_task is not None
    assert not result.run_loop_task.done()
    result.cancel()
    await asyncio.wait({result.run_loop_task}, timeout=10)
    assert endless.closed.is_set()


@pytest.mark.sdk_fact("stream.immediate-cancel-leaves-nothing")
async def test_an_immediate_cancel_leaves_no_items_and_no_usage() -> None:
    result = Runner.run_streamed(Agent(name="A", model=Endless().model, tools=[look]), USER)
    async with asyncio.timeout(10):
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                result.cancel()
    assert result.new_items == []
    assert result.raw_responses == []
    assert result.context_wrapper.usage.total_tokens == 0


@pytest.mark.sdk_fact("stream.model-errors-come-out-as-they-are")
async def test_an_error_in_the_middle_of_a_stream_is_raised_as_it_is() -> None:
    error = ConnectionResetError("gone")

    async def broken(_call: Any) -> AsyncGenerator[Any]:
        yield call_added()
        raise error

    result = Runner.run_streamed(Agent(name="A", model=script(ModelStep.stream(broken))), USER)
    with pytest.raises(ConnectionResetError) as raised:
        await events_of(result)
    assert raised.value is error
