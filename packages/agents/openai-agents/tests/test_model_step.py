"""One model call per Step, and the same conversation as a plain run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from agents import (
    Agent,
    Runner,
    function_tool,
    handoff,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.testing import ModelStep
from agents.tracing import TracingProcessor
from stepped_session import (
    SteppedSession,
    assert_every_call_has_one_output,
    call,
    response,
    says,
    script,
    session_of,
)

from dex_agents import ModelError
from dex_agents_openai_agents import OpenAIAgentsRunner


@function_tool
def ping(x: str) -> str:
    """Answer."""
    return f"pong {x}"


async def test_a_text_answer_ends_the_turn_after_one_model_step() -> None:
    model = script(response(says("hello")))
    session = SteppedSession(lambda: OpenAIAgentsRunner(Agent(name="A", model=model)), [model])
    turn = await session.turn("hi")
    assert turn.text == "hello"
    assert turn.model_steps == 1
    assert turn.usage.model_calls == 1
    assert turn.usage.total_tokens == 15
    assert session.live_text() == "hello"


async def test_model_inputs_and_answer_equal_those_of_a_plain_run() -> None:
    steps = [
        response(call("ping", "c1", x="1"), call("ping", "c2", x="2")),
        response(call("ping", "c3", x="3")),
        response(says("done")),
    ]
    plain_model = script(*steps)
    plain = await Runner.run(Agent(name="A", model=plain_model, tools=[ping]), "go")
    model = script(*steps)
    session = SteppedSession(
        lambda: OpenAIAgentsRunner(Agent(name="A", model=model, tools=[ping])), [model]
    )
    turn = await session.turn("go")
    assert [c.input for c in model.calls] == [
        [{"role": "user", "content": "go"}, *as_list(c.input)[1:]] for c in plain_model.calls
    ]
    assert turn.text == plain.final_output == "done"
    assert turn.kinds == ["ToolCallsRequested", "ToolCallsRequested", "TurnCompleted"]
    assert turn.usage.total_tokens == plain.context_wrapper.usage.total_tokens == 45
    assert turn.usage.model_calls == 3


def as_list(items: Any) -> list[Any]:
    return items if isinstance(items, list) else [{"role": "user", "content": items}]


@pytest.mark.sdk_fact("call.handoff-stops-before-the-target")
async def test_a_handoff_takes_one_model_step_per_call() -> None:
    model = script(
        response(call("transfer_to_b", "h1")),
        response(call("ping", "c1", x="1")),
        response(says("from b")),
        response(says("again b")),
    )

    def runner() -> OpenAIAgentsRunner:
        b = Agent(name="b", model=model, tools=[ping], instructions="I am b")
        return OpenAIAgentsRunner(Agent(name="a", model=model, handoffs=[handoff(b)]))

    session = SteppedSession(runner, [model])
    turn = await session.turn("go")
    assert turn.kinds == ["TurnContinues", "ToolCallsRequested", "TurnCompleted"]
    assert turn.text == "from b"
    await session.turn("more")
    assert [c.system_instructions for c in model.calls] == [None, "I am b", "I am b", "I am b"]
    assert_every_call_has_one_output(model.calls[-1].input)


async def test_a_cancelled_model_step_leaves_no_task_and_no_open_stream() -> None:
    started, closed = asyncio.Event(), asyncio.Event()

    async def endless(_call: Any) -> AsyncGenerator[Any]:
        try:
            started.set()
            await asyncio.Event().wait()
            yield None
        finally:
            closed.set()

    model = script(ModelStep.stream(endless))
    before = asyncio.all_tasks()
    step = asyncio.create_task(session_of(Agent(name="A", model=model)).turn("go"))
    await asyncio.wait_for(started.wait(), 10)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert closed.is_set()
    assert asyncio.all_tasks() == before


async def test_a_failing_model_step_leaves_no_task() -> None:
    model = script(RuntimeError("down"))
    before = asyncio.all_tasks()
    turn = await session_of(Agent(name="A", model=model)).turn("go")
    assert isinstance(turn.outcome, RuntimeError)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_callback_of_the_application_that_raises_is_left_to_the_session() -> None:
    def instructions(_context: Any, _agent: Any) -> str:
        raise KeyError("no such customer")

    model = script(response(says("never")))
    turn = await session_of(Agent[Any](name="A", model=model, instructions=instructions)).turn("go")
    assert isinstance(turn.outcome, KeyError)
    assert not model.calls


async def test_a_model_that_streams_nothing_at_all_may_be_tried_again() -> None:
    async def nothing(_call: Any) -> AsyncGenerator[Any]:
        return
        yield

    turn = await session_of(Agent(name="A", model=script(ModelStep.stream(nothing)))).turn("go")
    assert isinstance(turn.outcome, ModelError)


class SpanLog(TracingProcessor):
    """Remembers traces and spans."""

    def __init__(self) -> None:
        self.traces: list[str] = []
        self.groups: list[Any] = []
        self.spans: dict[str, Any] = {}
        self.ends: list[str] = []

    def on_trace_start(self, trace: Any) -> None:
        self.traces.append(trace.trace_id)
        self.groups.append((trace.export() or {}).get("group_id"))

    def on_trace_end(self, trace: Any) -> None:
        return None

    def on_span_start(self, span: Any) -> None:
        self.spans[span.span_id] = span

    def on_span_end(self, span: Any) -> None:
        self.ends.append(span.span_id)

    def shutdown(self) -> None:
        return None

    def force_flush(self) -> None:
        return None


async def test_case_38_a_turn_is_one_trace_with_whole_spans() -> None:
    log = SpanLog()
    set_trace_processors([log])
    set_tracing_disabled(False)
    try:
        model = script(
            response(call("ping", "c1", x="1"), call("ping", "c2", x="2")), response(says("done"))
        )
        await session_of(Agent(name="A", model=model, tools=[ping])).turn("go")
    finally:
        set_tracing_disabled(True)
        set_trace_processors([])
    assert len(set(log.traces)) == 1
    assert set(log.groups) == {"session-1"}
    assert sorted(log.ends) == sorted(log.spans)
    assert len(set(log.ends)) == len(log.ends), "each span ends once"
    for span in log.spans.values():
        assert span.trace_id == log.traces[0]
        assert span.parent_id is None or span.parent_id in log.spans
    names = [getattr(s.span_data, "name", None) for s in log.spans.values()]
    assert names.count("ping") >= 2
