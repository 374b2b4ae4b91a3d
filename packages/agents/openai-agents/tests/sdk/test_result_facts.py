"""What becomes of a recorded result when the run that asked for it is resumed."""

from __future__ import annotations

from typing import Any

import pytest
from agents import (
    Agent,
    FunctionToolResult,
    ItemHelpers,
    ModelSettings,
    RunContextWrapper,
    Runner,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    ToolsToFinalOutputResult,
    UserError,
    function_tool,
)
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel
from sdk_runs import USER, restored, soft_stopped, stored
from stepped_session import call, outputs, response, says, script
from wire_conditions import Way
from wire_session import provider


class Weather(BaseModel):
    """A typed result."""

    degrees: int


def gate(result: object, **options: Any) -> Any:
    """A tool called `it` that waits for approval and gives a recorded result."""

    def it() -> Any:
        """Do it."""
        return ""

    tool = function_tool(it, needs_approval=True, failure_error_function=None, **options)

    async def recorded(_context: Any, _arguments: str) -> object:
        return result

    tool.on_invoke_tool = recorded
    return tool


async def given_back(tool: Any, *, reject: str | None = None, **agent: Any) -> Any:
    """Resume with the recorded result, or a rejection; return the model's next input."""
    model = script(response(call("it", "c1")), response(says("done")))
    one = Agent[Any](name="A", model=model, tools=[tool], **agent)
    state = await restored(one, await soft_stopped(one, USER))
    [item] = state.get_interruptions()
    if reject is None:
        state.approve(item)
    else:
        state.reject(item, rejection_message=reject)
    result = await soft_stopped(one, state)
    return model, result


@pytest.mark.sdk_fact("result.approved-output-is-the-gates")
async def test_an_approved_call_gets_what_its_gate_returns() -> None:
    model, _result = await given_back(gate("recorded"))
    assert outputs(model.calls[1].input) == ["recorded"]


@pytest.mark.sdk_fact("result.typed-output-is-checked-again")
async def test_a_typed_gate_takes_json_text_that_fits_and_refuses_other_text() -> None:
    model, _result = await given_back(gate('{"degrees": 20}', output_type=Weather))
    assert outputs(model.calls[1].input) == ['{"degrees":20}']
    with pytest.raises(UserError):
        await given_back(gate("it failed", output_type=Weather))


@pytest.mark.sdk_fact("result.rejection-carries-any-text")
@pytest.mark.parametrize("options", [{}, {"output_type": Weather}], ids=["plain", "typed"])
async def test_a_rejected_call_gets_the_text_of_the_rejection_past_its_type(
    options: dict[str, Any],
) -> None:
    model, _result = await given_back(gate("never", **options), reject="it failed")
    assert outputs(model.calls[1].input) == ["it failed"]


@pytest.mark.sdk_fact("result.rejection-counts-as-the-first-tool")
@pytest.mark.parametrize("behaviour", ["stop_on_first_tool", {"stop_at_tool_names": ["it"]}])
async def test_a_rejected_call_ends_the_run_where_a_tool_would(behaviour: Any) -> None:
    model, result = await given_back(gate("x"), reject="no", tool_use_behavior=behaviour)
    assert result.final_output == "no"
    assert len(model.calls) == 1


@pytest.mark.sdk_fact("result.decided-calls-reach-a-custom-behaviour")
@pytest.mark.parametrize(("rejection", "seen"), [("no", "no"), (None, {"a": 1})])
async def test_a_custom_behaviour_sees_the_gates_value_or_the_rejection(
    rejection: str | None, seen: object
) -> None:
    values: list[object] = []

    def decide(
        _context: RunContextWrapper[Any], results: list[FunctionToolResult]
    ) -> ToolsToFinalOutputResult:
        values.extend(result.output for result in results)
        return ToolsToFinalOutputResult(is_final_output=True, final_output="end")

    await given_back(gate({"a": 1}), reject=rejection, tool_use_behavior=decide)
    assert values == [seen]


@pytest.mark.sdk_fact("result.tool-choice-is-reset")
@pytest.mark.parametrize("rejection", [None, "no"])
async def test_a_forced_tool_choice_is_lifted_after_the_call_however_it_was_decided(
    rejection: str | None,
) -> None:
    settings = ModelSettings(tool_choice="required")
    model, _result = await given_back(gate("x"), reject=rejection, model_settings=settings)
    assert [c.model_settings.tool_choice for c in model.calls] == ["required", None]


PARTS: list[Any] = [
    ToolOutputText(text="a"),
    ToolOutputImage(image_url="data:image/png;base64,AA"),
    ToolOutputFileContent(file_data="AA", filename="f.pdf"),
]
MAPPED: list[Any] = [
    {"type": "text", "text": "a"},
    {"type": "image", "image_url": "data:image/png;base64,AA"},
    {"type": "file", "file_data": "AA", "filename": "f.pdf"},
]


@pytest.mark.sdk_fact("result.mapped-parts-make-the-same-item")
async def test_parts_given_back_as_dicts_make_the_item_that_the_tool_made() -> None:
    recorded = ResponseFunctionToolCall(
        type="function_call", call_id="c1", name="it", arguments="{}"
    )
    original = ItemHelpers.tool_call_output_item(recorded, PARTS)
    assert ItemHelpers.tool_call_output_item(recorded, MAPPED) == original
    model, result = await given_back(gate(MAPPED))
    [item] = [i for i in model.calls[1].input if i.get("type") == "function_call_output"]
    assert item["output"] == original["output"]
    again = await restored(result.last_agent, result)
    kept = [i.raw_item for i in again._generated_items if i.type == "tool_call_output_item"]
    assert [dict(raw)["output"] for raw in kept if isinstance(raw, dict)] == [original["output"]]
    assert stored(result)["current_step"] is None


@pytest.mark.sdk_fact("result.chat-forwards-text-parts-alone")
@pytest.mark.parametrize("parts", [PARTS[:2], PARTS[1:2]], ids=["text and image", "image"])
async def test_a_chat_provider_is_sent_the_text_parts_of_a_result_and_no_image(
    parts: list[Any],
) -> None:
    def it() -> Any:
        """Show."""
        return parts

    replies = [{"tool_calls": [{"name": "it"}]}, {"text": "done"}]
    async with provider(Way("chat", streams=False), *replies) as (server, config):
        await Runner.run(Agent(name="A", tools=[function_tool(it)]), USER, run_config=config)
        messages: list[Any] = server.requests[-1].body["messages"]
    content = str(messages[-1]["content"])
    assert messages[-1]["role"] == "tool"
    assert "base64" not in content
    assert ("'a'" in content or content == "a") == (len(parts) == 2)
    assert content.strip()
