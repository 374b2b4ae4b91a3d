"""Cases about what ends a turn: guardrails, limits, structured answers, and what is paid for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    RunErrorHandlerInput,
    RunErrorHandlerResult,
    Runner,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
)
from agents.exceptions import ModelTimeoutError
from agents.testing import ModelStep, ScriptedModel
from openai.types.responses import ResponseCompletedEvent
from pydantic import BaseModel
from stepped_session import call, outputs, response, says, script, session_of

from dex_agents import ModelError, ToolCallStatus, ToolEffect, ToolPolicy, TurnCompleted


@function_tool
def ping(x: str) -> str:
    """Answer."""
    return f"pong {x}"


def tripping(kind: str, on: object, log: list[str]) -> dict[str, Any]:
    """A guardrail that trips on one value, for the agent's argument of that kind."""

    async def check(_context: Any, _agent: Any, value: Any) -> GuardrailFunctionOutput:
        log.append("checked")
        text = value if isinstance(value, str) else value[-1]["content"]
        return GuardrailFunctionOutput(None, tripwire_triggered=text == on)

    return (
        {"output_guardrails": [output_guardrail(check)]}
        if kind == "output"
        else {"input_guardrails": [input_guardrail(run_in_parallel=kind == "parallel")(check)]}
    )


# --- Case 12: what costs one model call ---------------------------------------------------------


async def test_case_12_a_tripped_output_guardrail_costs_one_call() -> None:
    log: list[str] = []
    model = script(response(says("bad")))
    agent = Agent[Any](name="A", model=model, **tripping("output", "bad", log))
    turn = await session_of(agent).turn("go")
    assert turn.failure.error_type == "OutputGuardrailTripwireTriggered"
    assert "'check'" in turn.failure.message
    assert len(model.calls) == 1


@pytest.mark.parametrize(("kind", "calls"), [("parallel", 1), ("before", 0)])
async def test_case_12_a_tripped_input_guardrail_ends_the_turn(kind: str, calls: int) -> None:
    log: list[str] = []
    model = script(response(call("ping", "c1", x="1")))
    agent = Agent[Any](name="A", model=model, tools=[ping], **tripping(kind, "bad", log))
    turn = await session_of(agent).turn("bad")
    assert turn.failure.error_type == "InputGuardrailTripwireTriggered"
    assert len(model.calls) <= calls


@pytest.mark.sdk_fact("callback.input-guardrails-run-once")
async def test_input_guardrails_run_once_in_a_turn_of_many_steps() -> None:
    log: list[str] = []
    model = script(
        response(call("ping", "c1", x="1")),
        response(call("transfer_to_b", "h1")),
        response(says("done")),
    )
    b = Agent[Any](name="b", model=model)
    agent = Agent[Any](
        name="a",
        model=model,
        tools=[ping],
        handoffs=[handoff(b)],
        **tripping("parallel", "bad", log),
    )
    turn = await session_of(agent).turn("go")
    assert turn.text == "done"
    assert log == ["checked"]


async def test_case_12_the_turn_limit_costs_no_further_call() -> None:
    model = script(response(call("ping", "c1", x="1")))
    turn = await session_of(Agent(name="A", model=model, tools=[ping]), max_turns=1).turn("go")
    assert turn.failure.error_type == "MaxTurnsExceeded"
    assert len(model.calls) == 1


class Answer(BaseModel):
    value: int


async def test_case_12_an_answer_of_the_wrong_type_costs_one_call() -> None:
    model = script(response(says("not json")))
    turn = await session_of(Agent(name="A", model=model, output_type=Answer)).turn("go")
    assert turn.failure.error_type == "ModelBehaviorError"
    assert len(model.calls) == 1


async def test_a_structured_answer_is_stored_as_the_model_wrote_it() -> None:
    model = script(response(call("ping", "c1", x="1")), response(says('{"value": 3}')))
    turn = await session_of(Agent(name="A", model=model, tools=[ping], output_type=Answer)).turn(
        "go"
    )
    assert turn.text == '{"value": 3}'
    assert [c.output_schema is not None for c in model.calls] == [True, True]


async def test_a_slow_model_may_be_tried_again() -> None:
    model = script(ModelTimeoutError(1.0))
    turn = await session_of(Agent(name="A", model=model)).turn("go")
    assert isinstance(turn.outcome, ModelError)


@pytest.mark.sdk_fact("call.empty-text-is-an-answer")
async def test_an_empty_answer_completes_the_turn() -> None:
    model = script(response(says("")), response(says("more")))
    session = session_of(Agent(name="A", model=model))
    assert isinstance((await session.turn("go")).outcome, TurnCompleted)
    assert (await session.turn("again")).text == "more"


# --- Case 36: the limit over all Steps ----------------------------------------------------------


@pytest.mark.sdk_fact("resume.limit-comes-from-the-state")
async def test_case_36_the_limit_counts_over_the_steps_of_a_turn_and_starts_again() -> None:
    model = script(*(response(call("ping", f"c{i}", x="1")) for i in range(6)))
    session = session_of(Agent(name="A", model=model, tools=[ping]), max_turns=3)
    turn = await session.turn("go")
    assert turn.failure.error_type == "MaxTurnsExceeded"
    assert len(model.calls) == 3
    await session.turn("again")
    assert len(model.calls) == 6


@pytest.mark.sdk_fact("resume.limit-has-a-handler")
async def test_case_36_the_text_of_a_handler_is_the_stored_answer() -> None:
    async def give_up(_input: RunErrorHandlerInput[Any]) -> RunErrorHandlerResult:
        return RunErrorHandlerResult(final_output="gave up")

    model = script(
        *(response(call("ping", f"c{i}", x="1")) for i in range(3)), response(says("fresh"))
    )
    session = session_of(
        Agent(name="A", model=model, tools=[ping]),
        max_turns=3,
        error_handlers={"max_turns": give_up},
    )
    turn = await session.turn("go")
    assert turn.text == "gave up"
    assert turn.usage.model_calls == 3
    assert (await session.turn("again")).text == "fresh"
    assert outputs(model.calls[-1].input) == ["pong 1"] * 3


# --- Case 23: usage -----------------------------------------------------------------------------


@pytest.mark.sdk_fact("call.usage-is-cumulative")
async def test_case_23_usage_is_the_sum_of_the_calls_over_tools_and_a_handoff() -> None:
    steps = [
        response(call("ping", "c1", x="1"), tokens=15),
        response(call("ping", "c2", x="2"), tokens=26),
        response(call("transfer_to_b", "h1"), tokens=37),
        response(says("done"), tokens=48),
    ]
    plain_model, model = script(*steps), script(*steps)

    def agent(model: Any) -> Agent[Any]:
        return Agent(name="a", model=model, tools=[ping], handoffs=[Agent(name="b", model=model)])

    plain = await Runner.run(agent(plain_model), "go")
    turn = await session_of(agent(model)).turn("go")
    assert turn.usage.model_calls == plain.context_wrapper.usage.requests == 4
    assert turn.usage.total_tokens == plain.context_wrapper.usage.total_tokens == 126


# --- Case 11: the size of what is stored between Steps ------------------------------------------


async def test_case_11_a_large_output_is_not_stored_in_the_state_as_well() -> None:
    text = "".join(chr(33 + (i * 7919 * (i % 97 + 1)) % 90) for i in range(1_000_000))

    @function_tool
    def large() -> str:
        """Get much."""
        return text

    model = script(
        response(call("large", "c1")), response(call("ping", "c2", x="1")), response(says("done"))
    )
    turn = await session_of(Agent(name="A", model=model, tools=[large, ping])).turn("go")
    assert outputs(model.calls[2].input) == [text, "pong 1"]
    assert max(turn.state_sizes) < 10_000


# --- streaming ----------------------------------------------------------------------------------


@pytest.mark.sdk_fact("call.one-completed-event-is-a-stream")
async def test_a_model_that_cannot_stream_is_asked_for_a_whole_response() -> None:
    class Mute(ScriptedModel):
        """A model without streaming."""

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    model = Mute([response(call("ping", "c1", x="1")), response(says("done"))])
    session = session_of(Agent(name="A", model=model, tools=[ping]))
    turn = await session.turn("go")
    assert turn.kinds == ["ToolCallsRequested", "TurnCompleted"]
    assert turn.usage.total_tokens == 30
    assert session.live_text() == "done"
    assert not any(c.streamed for c in model.calls)


async def test_text_without_deltas_is_shown_once_it_is_there() -> None:
    async def whole(_call: Any) -> AsyncGenerator[Any]:
        yield ResponseCompletedEvent.model_validate(
            {
                "type": "response.completed",
                "sequence_number": 0,
                "response": {
                    "id": "r",
                    "created_at": 0,
                    "model": "m",
                    "object": "response",
                    "output": [says("all at once").model_dump()],
                    "tool_choice": "auto",
                    "tools": [],
                    "parallel_tool_calls": True,
                },
            }
        )

    model = script(ModelStep.stream(whole))
    session = session_of(Agent(name="A", model=model))
    assert (await session.turn("go")).text == "all at once"
    assert session.live_text() == "all at once"


# --- odd responses and answers ------------------------------------------------------------------


async def test_a_rejected_call_reads_the_frameworks_own_words_without_a_message() -> None:
    model = script(response(call("ping", "c1", x="1")), response(says("ok")))
    turn = await session_of(
        Agent(name="A", model=model, tools=[ping]),
        policies={"ping": ToolPolicy(ToolEffect.UNCLASSIFIED)},
        answer=lambda _record: False,
    ).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.REJECTED
    assert outputs(model.calls[1].input) == ["Tool execution was not approved."]


@pytest.mark.sdk_fact("call.handoff-beside-a-call-waits")
async def test_a_tool_and_a_handoff_in_one_response_both_happen() -> None:
    model = script(
        response(call("ping", "c1", x="1"), call("transfer_to_b", "h1")), response(says("from b"))
    )
    b = Agent(name="b", model=model)
    agent = Agent(name="a", model=model, tools=[ping], handoffs=[b])
    turn = await session_of(agent).turn("go")
    assert turn.text == "from b"
    assert turn.records["c1"].status is ToolCallStatus.SUCCEEDED
    assert turn.model_steps == 2


@pytest.mark.sdk_fact("handoff.first-one-wins")
async def test_a_second_handoff_in_one_response_gets_an_error_as_in_a_plain_run() -> None:
    steps = [
        response(call("transfer_to_b", "h1"), call("transfer_to_c", "h2")),
        response(says("from b")),
    ]

    def agent(model: Any) -> Agent[Any]:
        return Agent(
            name="a",
            model=model,
            handoffs=[Agent(name="b", model=model), Agent(name="c", model=model)],
        )

    plain_model, model = script(*steps), script(*steps)
    await Runner.run(agent(plain_model), [{"role": "user", "content": "go"}])
    turn = await session_of(agent(model)).turn("go")
    assert turn.text == "from b"
    assert model.calls[1].input == plain_model.calls[1].input
