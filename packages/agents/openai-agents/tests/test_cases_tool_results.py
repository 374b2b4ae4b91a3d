"""Cases about what tools return: values, images, text that guardrails replaced."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from agents import (
    Agent,
    FunctionToolResult,
    ModelBehaviorError,
    RunContextWrapper,
    Runner,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolOutputFileContent,
    ToolOutputGuardrailData,
    ToolOutputImage,
    ToolOutputText,
    ToolsToFinalOutputResult,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)
from equivalence_tools import Shelves
from pydantic import BaseModel
from stepped_session import (
    call,
    outputs,
    response,
    says,
    script,
    session_of,
)

from dex_agents import ToolCallStatus, ToolEffect

# --- Case 3: results that code looks at ---------------------------------------------------------


class Weather(BaseModel):
    city: str
    t: int


@dataclass
class Plain:
    t: int


VALUES: list[tuple[type, object]] = [
    (Weather, Weather(city="Oslo", t=3)),
    (Plain, Plain(3)),
    (int, 3),
    (dict, {"t": 3}),
]


@pytest.mark.parametrize(("declared", "value"), VALUES)
@pytest.mark.parametrize("behavior", ["custom", "stop_on_first_tool"])
async def test_case_3_code_that_decides_the_end_gets_the_tools_own_value(
    declared: type, value: object, behavior: str
) -> None:
    seen: list[object] = []

    def weather() -> object:
        """Look it up."""
        return value

    weather.__annotations__["return"] = declared
    tool = function_tool(weather)

    def decide(
        _context: RunContextWrapper[Any], results: list[FunctionToolResult]
    ) -> ToolsToFinalOutputResult:
        seen.append(results[0].output)
        return ToolsToFinalOutputResult(is_final_output=True, final_output="3")

    model = script(response(call("weather", "c1")))
    agent = Agent(
        name="A",
        model=model,
        tools=[tool],
        tool_use_behavior=decide if behavior == "custom" else "stop_on_first_tool",
    )
    session = session_of(agent)
    turn = await session.turn("go")
    assert turn.messages[-1].text == ("3" if behavior == "custom" else str(value))
    assert turn.model_steps == 2
    assert len(model.calls) == 1
    if behavior == "custom":
        assert seen == [value]
        assert type(seen[0]) is type(value)


@pytest.mark.parametrize(
    ("final", "output_type", "text"),
    [
        (None, None, "second"),
        ("all of it", None, "all of it"),
        (Weather(city="Oslo", t=3), None, "city='Oslo' t=3"),
        (Weather(city="Oslo", t=3), Weather, '{"city":"Oslo","t":3}'),
        (7, int, "7"),
    ],
)
async def test_case_3_an_answer_made_of_tool_results_is_read_by_people_and_sent_to_no_model(
    final: object, output_type: type | None, text: str
) -> None:
    @function_tool
    def look(x: str) -> str:
        """Look."""
        return x

    def decide(
        _context: RunContextWrapper[Any], results: list[FunctionToolResult]
    ) -> ToolsToFinalOutputResult:
        return ToolsToFinalOutputResult(
            is_final_output=True, final_output=results[1].output if final is None else final
        )

    steps = [
        response(*(call("look", f"c{n}", x=x) for n, x in enumerate(("first", "second", "third")))),
        response(says("later")),
    ]

    def agent(model: Any) -> Agent[Any]:
        return Agent(
            name="A",
            model=model,
            tools=[look],
            tool_use_behavior=decide,
            output_type=output_type,
        )

    plain_model, model = script(*steps), script(*steps)
    plain = await Runner.run(agent(plain_model), [{"role": "user", "content": "go"}])
    more: list[Any] = [*plain.to_input_list(), {"role": "user", "content": "more"}]
    with suppress(ModelBehaviorError):  # "later" is no value of the output types
        await Runner.run(plain.last_agent, more)
    session = session_of(agent(model))
    turn = await session.turn("go")
    assert turn.messages[-1].text == text
    assert output_type is not None or plain.final_output == text
    assert [message.role for message in turn.messages[-2:]] == ["tool", "assistant"]
    await session.turn("more")
    assert [c.input for c in model.calls] == [c.input for c in plain_model.calls]


async def test_case_3_a_tool_with_an_output_type_gives_its_object() -> None:
    seen: list[object] = []

    @function_tool(output_type=Weather)
    def weather() -> Weather:
        """Look it up."""
        return Weather(city="Oslo", t=3)

    def decide(
        _context: RunContextWrapper[Any], results: list[FunctionToolResult]
    ) -> ToolsToFinalOutputResult:
        seen.append(results[0].output)
        return ToolsToFinalOutputResult(is_final_output=False)

    steps = [response(call("weather", "c1")), response(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    await Runner.run(
        Agent(name="A", model=plain_model, tools=[weather], tool_use_behavior=decide), "go"
    )
    await session_of(Agent(name="A", model=model, tools=[weather], tool_use_behavior=decide)).turn(
        "go"
    )
    assert seen == [Weather(city="Oslo", t=3)] * 2
    assert outputs(model.calls[1].input) == outputs(plain_model.calls[1].input)


async def test_case_3_code_that_decides_the_end_gets_a_single_part_as_in_a_plain_run() -> None:
    @function_tool
    def show() -> ToolOutputImage:
        """Show."""
        return ToolOutputImage(image_url="data:image/png;base64,AAAA")

    @function_tool
    def show_all() -> list[ToolOutputImage]:
        """Show all."""
        return [ToolOutputImage(image_url="data:image/png;base64,AAAA")]

    async def seen_by(run: Callable[[Agent[Any]], Awaitable[object]]) -> list[object]:
        seen: list[object] = []

        def decide(
            _context: RunContextWrapper[Any], results: list[FunctionToolResult]
        ) -> ToolsToFinalOutputResult:
            seen.extend(result.output for result in results)
            return ToolsToFinalOutputResult(is_final_output=True, final_output="seen")

        model = script(
            response(call("stock", "c1", x="one"), call("show", "c2"), call("show_all", "c3"))
        )
        agent = Agent[Any](
            name="A",
            model=model,
            tools=[show, show_all],
            mcp_servers=[Shelves()],
            tool_use_behavior=decide,
        )
        await run(agent)
        return seen

    plain = await seen_by(lambda agent: Runner.run(agent, "go"))
    durable = await seen_by(lambda agent: session_of(agent).turn("go"))
    assert durable[:2] == plain[:2]
    assert isinstance(durable[0], dict)
    assert isinstance(durable[1], ToolOutputImage)
    # Several parts are plain data here.
    assert durable[2] == [{"type": "image", "image_url": "data:image/png;base64,AAAA"}]


# --- Case 4: images and files -------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        ToolOutputImage(image_url="data:image/png;base64,AAAA", detail="low"),
        [
            ToolOutputText(text="two files"),
            ToolOutputFileContent(file_data="AAAA", filename="a.pdf"),
            ToolOutputFileContent(file_id="file-1"),
        ],
        {"type": "image", "file_id": "file-2"},
    ],
)
async def test_case_4_images_and_files_reach_the_model_as_such(value: Any) -> None:
    @function_tool
    def img() -> Any:
        """Show it."""
        return value

    steps = [
        response(call("img", "c1")),
        response(call("img", "c2")),
        response(says("done", "m1")),
        response(says("later", "m2")),
    ]
    plain_model, model = script(*steps), script(*steps)
    plain = await Runner.run(
        Agent(name="A", model=plain_model, tools=[img]), [{"role": "user", "content": "go"}]
    )
    await Runner.run(
        plain.last_agent, [*plain.to_input_list(), {"role": "user", "content": "more"}]
    )
    session = session_of(Agent(name="A", model=model, tools=[img]))
    turn = await session.turn("go")
    await session.turn("more")
    assert [c.input for c in model.calls] == [c.input for c in plain_model.calls]
    assert isinstance(outputs(model.calls[1].input)[0], list)
    assert "AAAA" not in (turn.records["c1"].output or ""), "people read no base64"


# --- Case 31: tool guardrails -------------------------------------------------------------------


def guarded(action: str, on: str) -> dict[str, Any]:
    def decide() -> ToolGuardrailFunctionOutput:
        return (
            ToolGuardrailFunctionOutput.reject_content("REDACTED")
            if action == "reject"
            else ToolGuardrailFunctionOutput.raise_exception()
        )

    @tool_input_guardrail
    def input_check(_data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        return decide()

    @tool_output_guardrail
    def output_check(_data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        return decide()

    return (
        {"tool_input_guardrails": [input_check]}
        if on == "input"
        else {"tool_output_guardrails": [output_check]}
    )


@pytest.mark.parametrize("typed", [False, True])
async def test_case_31_a_redacted_output_is_all_that_is_kept_or_shown(typed: bool) -> None:
    def look() -> Weather:
        """Look."""
        return Weather(city="secret 123", t=1)

    options: dict[str, Any] = guarded("reject", "output")
    if typed:
        options["output_type"] = Weather
    tool = function_tool(look, **options)
    model = script(response(call("look", "c1")), response(says("done")))
    session = session_of(Agent(name="A", model=model, tools=[tool]))
    turn = await session.turn("go")
    assert outputs(model.calls[1].input) == ["REDACTED"]
    assert turn.records["c1"].status is ToolCallStatus.SUCCEEDED
    kept = json.dumps([repr(turn.records), repr(session.messages), repr(session.events)])
    assert "secret 123" not in kept


async def test_case_31_a_refused_output_fails_the_turn_once_and_is_not_kept() -> None:
    runs: list[str] = []

    def look() -> str:
        """Look."""
        runs.append("run")
        return "secret 123"

    tool = function_tool(look, **guarded("raise", "output"))
    model = script(response(call("look", "c1")))
    session = session_of(Agent(name="A", model=model, tools=[tool]))
    turn = await session.turn("go")
    assert turn.failure.error_type == "ToolOutputGuardrailTripwireTriggered"
    assert "output_check" in turn.failure.message
    assert runs == ["run"]
    assert turn.records["c1"].status is ToolCallStatus.SUCCEEDED
    assert "secret 123" not in repr(turn.records) + repr(session.messages)
    assert len(model.calls) == 1


@pytest.mark.parametrize(("action", "text"), [("reject", "REDACTED"), ("raise", "input_check")])
async def test_case_31_an_input_guardrail_fails_the_call_before_the_body(
    action: str, text: str
) -> None:
    runs: list[str] = []

    def look() -> str:
        """Look."""
        runs.append("run")
        return "x"

    tool = function_tool(look, **guarded(action, "input"))
    model = script(response(call("look", "c1")), response(says("done")))
    turn = await session_of(
        Agent(name="A", model=model, tools=[tool]), default_effect=ToolEffect.IDEMPOTENT_WRITE
    ).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert text in outputs(model.calls[1].input)[0]
    assert runs == []
    assert turn.text == "done"
