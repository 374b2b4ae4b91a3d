"""Calls that generated code makes: each is a Step, and the code gets its results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agents import (
    Agent,
    CustomTool,
    ProgrammaticToolCallingTool,
    Runner,
    RunState,
    ShellTool,
    function_tool,
)
from native_calls import custom_call, shell_call, whole
from openai.types.responses.response_output_item import Program, ProgramOutput
from pydantic import BaseModel
from stepped_session import as_text, call, says, script, session_of

from dex_agents import AgentToolCall, ToolCallStatus
from dex_agents_openai_agents._stored.run_state import decode_run, encode_run

USER: list[Any] = [{"role": "user", "content": "go"}]
PROGRAM = Program(type="program", id="prog", call_id="p1", code="await look(1)", fingerprint="f")
ENDED = ProgramOutput(
    type="program_output", id="out", call_id="p1", result="42", status="completed"
)


class Weather(BaseModel):
    degrees: int


def programmed(made: Any) -> Any:
    """The same call, made by the program."""
    fields = made.model_dump(exclude_unset=True)
    return type(made).model_validate({**fields, "caller": {"type": "program", "caller_id": "p1"}})


def tools(ran: list[str]) -> list[Any]:
    @function_tool(allowed_callers=["programmatic"])
    def look(x: int) -> str:
        """Look."""
        ran.append(f"look {x}")
        return f"saw {x}"

    @function_tool(allowed_callers=["programmatic"], output_type=Weather)
    def weather() -> Weather:
        """Tell the weather."""
        ran.append("weather")
        return Weather(degrees=20)

    @function_tool(allowed_callers=["programmatic", "direct"])
    def broken() -> str:
        """Fail."""
        raise ValueError("no")

    @function_tool(allowed_callers=["programmatic"], needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(f"pay {amount}")
        return f"paid {amount}"

    async def invoke(_context: Any, text: str) -> str:
        return f"noted {text}"

    return [
        ProgrammaticToolCallingTool(),
        look,
        weather,
        broken,
        pay,
        CustomTool("note", "Note.", invoke, allowed_callers=["programmatic"]),
        ShellTool(lambda _request: "ran", allowed_callers=["programmatic"]),
    ]


def agent(model: Any, ran: list[str]) -> Agent[Any]:
    return Agent(name="A", model=model, tools=tools(ran))


@pytest.mark.sdk_fact("kind.program-calls-wait-and-keep-their-caller")
async def test_the_program_gets_what_it_gets_in_a_plain_run() -> None:
    calls = [
        call("look", "c1", x=1),
        call("weather", "c2"),
        call("look", "c3", x=2),
        custom_call("note", "c4", "x"),
        shell_call("c5", "ls"),
    ]
    responses = [whole(PROGRAM, *map(programmed, calls)), whole(ENDED, says("done"))]
    plain_model, model = script(*responses), script(*responses)
    await Runner.run(agent(plain_model, []), list(USER))
    ran: list[str] = []
    session = session_of(agent(model, ran), body_runs=lambda: len(ran))
    turn = await session.turn("go")
    assert turn.text == "done"
    assert list(turn.records) == ["c1", "c2", "c3", "c4", "c5"]
    sent: list[Any] = list(model.calls[1].input)
    assert sorted(as_text(sent)) == sorted(as_text(plain_model.calls[1].input))
    callers = [item["caller"]["caller_id"] for item in sent if "output" in item]
    assert callers == ["p1"] * 5, "every result goes to the program"
    assert sorted(ran) == ["look 1", "look 2", "weather"]


@pytest.mark.sdk_fact("kind.program-calls-wait-and-keep-their-caller")
async def test_some_calls_of_a_program_may_be_approved_and_others_not() -> None:
    calls = [call("pay", "c1", amount=1), call("pay", "c2", amount=2), call("look", "c3", x=3)]
    responses = [whole(PROGRAM, *map(programmed, calls)), whole(ENDED, says("done"))]
    plain_model, model = script(*responses), script(*responses)
    plain = await Runner.run(agent(plain_model, []), list(USER))
    state: RunState[Any, Any] = plain.to_state()
    first, second = plain.interruptions
    state.approve(first)
    state.reject(second, rejection_message="Too much.")
    await Runner.run(agent(plain_model, []), state)
    ran: list[str] = []
    session = session_of(
        agent(model, ran),
        answer=lambda record: True if record.tool_call_id == "c1" else "Too much.",
    )
    turn = await session.turn("go")
    assert session.asked == ["c1", "c2"]
    assert turn.records["c2"].status is ToolCallStatus.REJECTED
    assert sorted(ran) == ["look 3", "pay 1"]
    assert sorted(as_text(model.calls[1].input)) == sorted(as_text(plain_model.calls[1].input))


async def test_a_failing_call_of_a_program_is_told_as_in_a_plain_run() -> None:
    responses = [whole(PROGRAM, programmed(call("broken", "c1"))), whole(ENDED, says("done"))]
    plain_model, model = script(*responses), script(*responses)
    await Runner.run(agent(plain_model, []), list(USER))
    turn = await session_of(agent(model, [])).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert as_text(model.calls[1].input) == as_text(plain_model.calls[1].input)


async def test_a_program_goes_on_from_a_state_the_framework_refuses() -> None:
    def from_the_future(state: str, records: dict[str, AgentToolCall]) -> str:
        run = decode_run(state, records)
        return encode_run(replace(run, state={**run.state, "$schemaVersion": "99.0"}), records)

    responses = [
        whole(PROGRAM, programmed(call("look", "c1", x=1))),
        whole(says("done")),
    ]
    plain_model, model = script(*responses), script(*responses)
    await Runner.run(agent(plain_model, []), list(USER))
    await session_of(agent(model, []), before_resume=from_the_future).turn("go")
    assert as_text(model.calls[1].input) == as_text(plain_model.calls[1].input)


async def test_a_call_that_a_program_may_not_make_ends_the_turn() -> None:
    @function_tool
    def direct_only() -> str:
        """Do."""
        return ""

    model = script(whole(PROGRAM, programmed(call("direct_only", "c1"))))
    one = Agent(name="A", model=model, tools=[*tools([]), direct_only])
    turn = await session_of(one).turn("go")
    assert turn.failure.error_type == "ModelBehaviorError"
    assert len(model.calls) == 1


@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_program_call_keeps_the_callers_of_its_tool(timeout: float | None) -> None:
    """The Step makes the call as a direct one, whoever may call the tool."""

    @function_tool(allowed_callers=["programmatic"], timeout=timeout)
    async def look() -> str:
        """Look."""
        return "seen"

    responses = [whole(PROGRAM, programmed(call("look", "c1"))), whole(ENDED, says("done"))]
    model = script(*responses)
    one = Agent(name="A", model=model, tools=[ProgrammaticToolCallingTool(), look])
    turn = await session_of(one).turn("go")
    assert turn.records["c1"].output == "seen"
    assert look.allowed_callers == ["programmatic"]
