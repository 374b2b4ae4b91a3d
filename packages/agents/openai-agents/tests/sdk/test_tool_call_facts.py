"""What one recorded call is when the SDK carries it out in a run of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    ApplyPatchTool,
    CustomTool,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ProgrammaticToolCallingTool,
    RunConfig,
    Runner,
    RunResult,
    ShellTool,
    Tool,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputFileContent,
    ToolOutputGuardrailData,
    ToolOutputGuardrailTripwireTriggered,
    ToolOutputImage,
    ToolOutputText,
    UserError,
    function_tool,
    tool_input_guardrail,
    tool_namespace,
    tool_output_guardrail,
)
from agents.exceptions import ToolTimeoutError
from agents.tool import set_function_tool_failure_error_function
from agents.tool_context import ToolContext
from native_calls import custom_call, patch_call, shell_call, whole
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel
from sdk_runs import USER, pending_ids
from stepped_session import call, response, says, script


async def carried_out(tool: Tool, recorded: Any | None = None, /, **options: Any) -> RunResult:
    """Let the SDK make one recorded call, in a run that ends at its result."""
    item = call(tool.name, "c1") if recorded is None else recorded
    probe = Agent[Any](
        name="A", model=script([item]), tools=[tool], tool_use_behavior="stop_on_first_tool"
    )
    return await Runner.run(probe, USER, max_turns=1, **options)


def output_of(result: RunResult) -> Any:
    [item] = [item for item in result.new_items if item.type == "tool_call_output_item"]
    raw: Any = item.raw_item
    return raw["output"]


def raising(body: Callable[..., Any], **options: Any) -> Any:
    """A tool called `it` that raises instead of apologising to the model."""
    return function_tool(body, name_override="it", failure_error_function=None, **options)


Variable: ContextVar[str] = ContextVar("of_the_test", default="unset")


@pytest.mark.sdk_fact("tool.sync-body-has-a-thread-and-the-contextvars")
async def test_a_plain_function_runs_in_a_thread_with_the_contextvars_of_the_run() -> None:
    seen: list[Any] = []

    def body() -> str:
        """Look around."""
        seen.extend([threading.current_thread() is threading.main_thread(), Variable.get()])
        return ""

    token = Variable.set("set")
    await carried_out(raising(body))
    Variable.reset(token)
    assert seen == [False, "set"]


@pytest.mark.sdk_fact("tool.context-describes-the-call")
async def test_a_tool_is_given_its_call_its_agent_and_the_run() -> None:
    seen: list[Any] = []

    def it(context: ToolContext[Any], x: int) -> str:
        """Look around."""
        config = context.run_config
        seen.extend(
            [
                context.tool_call_id,
                context.tool_name,
                context.tool_namespace,
                context.tool_arguments,
                context.context,
                context.agent.name if context.agent else None,
                config.workflow_name if config else None,
            ]
        )
        return ""

    [namespaced] = tool_namespace(name="crm", description="CRM.", tools=[function_tool(it)])
    recorded = ResponseFunctionToolCall(
        type="function_call", call_id="c1", name="it", arguments='{"x": 1}', namespace="crm"
    )
    config = RunConfig(workflow_name="flow")
    await carried_out(namespaced, recorded, context="mine", run_config=config)
    assert seen == ["c1", "it", "crm", '{"x": 1}', "mine", "A", "flow"]


@pytest.mark.sdk_fact("tool.error-is-wrapped-with-its-cause")
async def test_what_a_body_raises_is_the_cause_of_a_user_error() -> None:
    error = KeyError("no such order")

    def body() -> str:
        """Fail."""
        raise error

    with pytest.raises(UserError, match=r"^Error running tool it:") as raised:
        await carried_out(raising(body))
    assert raised.value.__cause__ is error


@pytest.mark.sdk_fact("tool.sdk-errors-are-not-wrapped")
async def test_an_error_of_the_sdk_that_a_body_raises_comes_out_as_it_is() -> None:
    error = MaxTurnsExceeded("enough")

    def body() -> str:
        """Fail."""
        raise error

    with pytest.raises(MaxTurnsExceeded) as raised:
        await carried_out(raising(body))
    assert raised.value is error


@pytest.mark.sdk_fact("tool.bad-arguments-stop-before-the-body")
@pytest.mark.parametrize("arguments", ["{", '{"x": "many"}', "{}"])
async def test_arguments_that_do_not_fit_raise_before_the_body_and_hide_their_details(
    arguments: str,
) -> None:
    def body(x: int) -> str:
        """Do it."""
        raise AssertionError("ran")

    recorded = ResponseFunctionToolCall(
        type="function_call", call_id="c1", name="it", arguments=arguments
    )
    with pytest.raises(ModelBehaviorError) as raised:
        await carried_out(raising(body), recorded)
    assert str(raised.value) == "Invalid JSON input for tool it"


@pytest.mark.sdk_fact("tool.fitting-arguments-are-coerced")
async def test_text_becomes_a_number_and_an_unknown_field_is_left_out() -> None:
    def body(x: int) -> str:
        """Do it."""
        return repr(x)

    result = await carried_out(raising(body), call("it", "c1", x="7", unknown=True))
    assert output_of(result) == "7"


@pytest.mark.sdk_fact("tool.timeout-can-raise")
async def test_a_body_that_is_too_slow_raises_a_timeout_when_asked_to() -> None:
    async def body() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""

    tool = raising(body, timeout=0.01, timeout_behavior="raise_exception")
    with pytest.raises(ToolTimeoutError) as raised:
        await carried_out(tool)
    assert raised.value.tool_name == "it"


@pytest.mark.sdk_fact("tool.sync-tools-have-no-timeout")
def test_a_plain_function_cannot_have_a_timeout() -> None:
    def body() -> str:
        """Wait."""
        return ""

    with pytest.raises(ValueError, match="async"):
        function_tool(body, timeout=1.0)


class Weather(BaseModel):
    """A typed result."""

    degrees: int


@pytest.mark.sdk_fact("tool.typed-result-is-json-text")
async def test_a_typed_result_is_json_text_and_one_of_another_type_an_error() -> None:
    def good() -> Weather:
        """Tell."""
        return Weather(degrees=20)

    def bad() -> Any:
        """Tell."""
        return {"degrees": "warm"}

    result = await carried_out(raising(good, output_type=Weather))
    assert output_of(result) == '{"degrees":20}'
    with pytest.raises(UserError):
        await carried_out(raising(bad, output_type=Weather))


@pytest.mark.sdk_fact("tool.parts-are-input-parts")
async def test_text_images_and_files_become_input_parts() -> None:
    def body() -> list[Any]:
        """Show."""
        return [
            ToolOutputText(text="a"),
            ToolOutputImage(image_url="data:image/png;base64,AA"),
            ToolOutputFileContent(file_data="AA", filename="f.pdf"),
        ]

    parts = output_of(await carried_out(raising(body)))
    assert [part["type"] for part in parts] == ["input_text", "input_image", "input_file"]


@pytest.mark.sdk_fact("tool.other-values-become-str")
async def test_a_dict_reaches_the_model_as_python_writes_it() -> None:
    def body() -> dict[str, Any]:
        """Tell."""
        return {"ok": True, "n": None}

    assert output_of(await carried_out(raising(body))) == "{'ok': True, 'n': None}"


def guarded(ran: list[str], kind: str, behaviour: str) -> Any:
    def judge(data: Any) -> ToolGuardrailFunctionOutput:
        if behaviour == "reject":
            return ToolGuardrailFunctionOutput.reject_content("not that")
        return ToolGuardrailFunctionOutput.raise_exception()

    @tool_input_guardrail
    def before(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        return judge(data)

    @tool_output_guardrail
    def after(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        return judge(data)

    def body() -> str:
        """Do it."""
        ran.append("ran")
        return "done"

    tool = raising(body)
    if kind == "input":
        tool.tool_input_guardrails = [before]
    else:
        tool.tool_output_guardrails = [after]
    return tool


@pytest.mark.sdk_fact("tool.input-guardrail-rejects-before-the-body")
async def test_an_input_guardrail_that_rejects_puts_its_message_in_place_of_the_body() -> None:
    ran: list[str] = []
    result = await carried_out(guarded(ran, "input", "reject"))
    assert output_of(result) == "not that"
    assert ran == []
    [judged] = result.tool_input_guardrail_results
    assert judged.output.behavior["type"] == "reject_content"


@pytest.mark.sdk_fact("tool.output-guardrail-replaces-the-output")
async def test_an_output_guardrail_that_rejects_puts_its_message_in_place_of_the_output() -> None:
    ran: list[str] = []
    result = await carried_out(guarded(ran, "output", "reject"))
    assert (output_of(result), ran) == ("not that", ["ran"])
    [judged] = result.tool_output_guardrail_results
    assert judged.output.behavior["type"] == "reject_content"


@pytest.mark.sdk_fact("tool.guardrails-trip-before-and-after-the-body")
async def test_guardrails_that_raise_do_so_before_the_body_or_after_it() -> None:
    ran: list[str] = []
    with pytest.raises(ToolInputGuardrailTripwireTriggered):
        await carried_out(guarded(ran, "input", "raise"))
    assert ran == []
    with pytest.raises(ToolOutputGuardrailTripwireTriggered):
        await carried_out(guarded(ran, "output", "raise"))
    assert ran == ["ran"]


@pytest.mark.sdk_fact("tool.nested-usage-counts")
async def test_the_usage_of_an_agent_inside_the_tool_is_that_of_the_run() -> None:
    inner = Agent[Any](name="Inner", model=script(response(says("in"), tokens=40)))
    result = await carried_out(inner.as_tool("it", "x"), call("it", "c1", input="x"))
    assert output_of(result) == "in"
    assert result.context_wrapper.usage.total_tokens == 40


def asking_agent(model: Any) -> Agent[Any]:
    def pay() -> str:
        """Pay."""
        return "paid"

    return Agent(name="Inner", model=model, tools=[function_tool(pay, needs_approval=True)])


@pytest.mark.sdk_fact("tool.nested-approval-stops-the-run")
async def test_an_approval_inside_the_tool_stops_the_run() -> None:
    inner = asking_agent(script(response(call("pay", "n1"))))
    result = await carried_out(inner.as_tool("it", "x"), call("it", "c1", input="x"))
    assert pending_ids(result) == ["n1"]
    assert result.final_output is None


@pytest.mark.sdk_fact("tool.cancelling-reaches-async-bodies-alone")
async def test_cancelling_the_run_cancels_a_coroutine_and_lets_a_thread_finish() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    task = asyncio.create_task(carried_out(raising(waits)))
    await asyncio.wait_for(started.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()

    running, go_on, finished = threading.Event(), threading.Event(), threading.Event()

    def blocks() -> str:
        """Block."""
        running.set()
        go_on.wait(10)
        finished.set()
        return ""

    task = asyncio.create_task(carried_out(raising(blocks)))
    await asyncio.to_thread(running.wait, 10)
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(finished.wait, 10)


@pytest.mark.sdk_fact("tool.default-formatter-hides-every-error")
async def test_the_default_formatter_tells_the_model_a_sentence_without_the_error() -> None:
    def body() -> str:
        """Fail."""
        raise ValueError("secret")

    tool = function_tool(body, name_override="it")
    text = output_of(await carried_out(tool))
    assert "secret" not in text
    with pytest.raises(UserError):
        await carried_out(set_function_tool_failure_error_function(tool, None))


@pytest.mark.sdk_fact("tool.bare-invocation-ignores-the-timeout")
async def test_a_tool_invoked_directly_ignores_its_timeout() -> None:
    async def body() -> str:
        """Take longer than allowed."""
        await asyncio.sleep(0.02)
        return "late"

    tool = raising(body, timeout=0.001, timeout_behavior="raise_exception")
    context = ToolContext[Any](None, tool_name="it", tool_call_id="c1", tool_arguments="{}")
    assert await tool.on_invoke_tool(context, "{}") == "late"


@pytest.mark.sdk_fact("tool.run-wide-model-wins")
async def test_the_model_of_the_run_configuration_wins_over_that_of_the_agent() -> None:
    def body() -> str:
        """Do it."""
        return ""

    instead = script(response(says("asked")))
    result = await carried_out(raising(body), run_config=RunConfig(model=instead))
    assert result.final_output == "asked"


@pytest.mark.sdk_fact("tool.nested-run-takes-the-config-of-the-tool-context")
async def test_an_agent_inside_the_tool_runs_with_what_a_hook_put_into_the_tool_context() -> None:
    given = RunConfig(model=script(response(says("from the hook"))))

    class Hooks(AgentHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Tool) -> None:
            context.run_config = given

    inner = Agent[Any](name="Inner", model=script())
    probe = Agent[Any](
        name="A",
        model=script([call("it", "c1", input="x")]),
        tools=[inner.as_tool("it", "x")],
        tool_use_behavior="stop_on_first_tool",
        hooks=Hooks(),
    )
    result = await Runner.run(probe, USER, max_turns=1)
    assert result.final_output == "from the hook"


async def note(_context: Any, _text: str) -> str:
    """A body of a custom tool."""
    return "noted"


class Editor:
    """An editor that does nothing."""

    def create_file(self, operation: Any) -> Any:
        return None

    def update_file(self, operation: Any) -> Any:
        return None

    def delete_file(self, operation: Any) -> Any:
        return None


@pytest.mark.sdk_fact("tool.only-functions-end-the-run")
@pytest.mark.parametrize(
    ("tool", "recorded"),
    [
        (CustomTool("note", "Note.", note), custom_call("note", "c1", "x")),
        (ShellTool(executor=lambda _request: "ran"), shell_call("c1", "ls")),
        (ApplyPatchTool(editor=Editor()), patch_call("c1", "create_file", "a.txt")),
    ],
    ids=["custom", "shell", "apply patch"],
)
async def test_a_result_of_another_kind_does_not_end_the_run(tool: Tool, recorded: Any) -> None:
    model = script(whole(recorded), response(says("")))
    probe = Agent[Any](name="A", model=model, tools=[tool], tool_use_behavior="stop_on_first_tool")
    await Runner.run(probe, USER, max_turns=2)
    assert len(model.calls) == 2


@pytest.mark.sdk_fact("tool.program-calls-need-their-program")
async def test_a_call_made_by_a_program_is_refused_without_its_program() -> None:
    def body() -> str:
        """Do it."""
        return "done"

    tool = raising(body, allowed_callers=["programmatic", "direct"])
    by_program = ResponseFunctionToolCall.model_validate(
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "it",
            "arguments": "{}",
            "caller": {"type": "program", "caller_id": "p1"},
        }
    )
    model = script([by_program])
    probe = Agent[Any](name="A", model=model, tools=[tool, ProgrammaticToolCallingTool()])
    with pytest.raises(ModelBehaviorError):
        await Runner.run(probe, USER, max_turns=1)
    assert output_of(await carried_out(tool)) == "done", "a direct call instead is carried out"


@pytest.mark.sdk_fact("tool.nested-stops-of-equal-calls-stay-apart")
async def test_a_nested_run_that_waits_takes_nothing_from_an_equal_call_of_another_run() -> None:
    """Also while the first run, its call and its result are still in memory."""
    inner_model = script(response(call("pay", "n1")), response(says("second")))
    tool = asking_agent(inner_model).as_tool("it", "x")
    kept = await carried_out(tool, call("it", "c1", input="x"))
    assert pending_ids(kept) == ["n1"]
    result = await carried_out(tool, call("it", "c1", input="x"))
    assert output_of(result) == "second"


@pytest.mark.sdk_fact("tool.nested-stops-of-bare-calls-are-mixed-up")
async def test_a_nested_run_that_waits_answers_an_equal_call_invoked_without_a_run() -> None:
    inner_model = script(response(call("pay", "n1")), response(says("second")))
    tool = asking_agent(inner_model).as_tool("it", "x")
    kept: list[Any] = []

    async def invoke(**identity: Any) -> object:
        arguments = '{"input": "x"}'
        recorded = ResponseFunctionToolCall(
            type="function_call", call_id="c1", name="it", arguments=arguments, **identity
        )
        kept.append(recorded)
        context = ToolContext[Any](
            None, tool_name="it", tool_call_id="c1", tool_arguments=arguments, tool_call=recorded
        )
        return await tool.on_invoke_tool(context, arguments)

    assert await invoke() is None
    assert await invoke() is None, "the answer of the first one, which waits"
    assert len(inner_model.calls) == 1
    assert await invoke(id="of its own") == "second"
