"""One model call per Step, and the same conversation as a plain run."""

from __future__ import annotations

from typing import Any

from agents import Agent, Runner, function_tool, handoff
from stepped_session import (
    SteppedSession,
    assert_every_call_has_one_output,
    call,
    response,
    says,
    script,
)

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
