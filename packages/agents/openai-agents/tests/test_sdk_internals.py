"""Each internal of the framework that this package reads, so that a change is seen at once."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
from agents import (
    Agent,
    FunctionTool,
    ModelBehaviorError,
    RunContextWrapper,
    Runner,
    RunState,
    UserError,
    function_tool,
    handoff,
    set_trace_processors,
)
from agents.testing import ScriptedModel
from agents.tool import default_tool_error_function
from agents.tool_context import ToolContext
from agents.tracing.processors import (
    BatchTraceProcessor,
    ConsoleSpanExporter,
    default_exporter,
    default_processor,
)
from pydantic import BaseModel
from stepped_session import call, response, says, script
from wire_conditions import Way
from wire_session import provider

from dex_agents_openai_agents import _sdk_internals as sdk


class Value(BaseModel):
    value: int


@function_tool(needs_approval=True)
def ping() -> str:
    """Answer."""
    return "pong"


@pytest.mark.sdk_fact("internal.release-line")
def test_the_installed_framework_is_the_line_this_package_was_written_for() -> None:
    version = importlib.metadata.version("openai-agents")
    assert version.startswith(f"{sdk.SDK_LINE}.")


@pytest.mark.sdk_fact("internal.handoff-reference")
def test_a_handoff_knows_its_target_and_can_be_pointed_elsewhere() -> None:
    first, second = Agent(name="1"), Agent(name="2")
    made = handoff(first)
    assert sdk.handoff_target(made) is first
    sdk.set_handoff_target(made, second)
    assert sdk.handoff_target(made) is second


@pytest.mark.sdk_fact("internal.agent-of-an-agent-tool")
def test_an_agent_tool_knows_its_agent() -> None:
    agent = Agent(name="1")
    assert sdk.nested_agent(agent.as_tool("x", "y")) is agent
    assert sdk.nested_agent(ping) is None


@pytest.mark.sdk_fact("internal.output-adapter")
def test_a_typed_tool_has_an_adapter() -> None:
    def make() -> Value:
        """Make."""
        return Value(value=1)

    adapter = sdk.output_adapter(function_tool(make, output_type=Value))
    assert adapter is not None
    assert adapter.validate_json('{"value": 1}') == Value(value=1)
    assert sdk.output_adapter(ping) is None


@pytest.mark.sdk_fact("internal.failure-formatter")
def test_only_the_applications_own_failure_text_counts_as_such() -> None:
    def text(_context: Any, _error: Exception) -> str:
        return "x"

    def body() -> str:
        """Fail."""
        return ""

    assert sdk.custom_failure_formatter(function_tool(body)) is None
    assert sdk.custom_failure_formatter(function_tool(body, failure_error_function=None)) is None
    assert sdk.custom_failure_formatter(function_tool(body, failure_error_function=text)) is text
    nested = Agent(name="1").as_tool("x", "y")
    assert sdk.custom_failure_formatter(nested) is default_tool_error_function


@pytest.mark.sdk_fact("internal.failure-text")
async def test_the_text_of_a_plain_run_for_a_failure_can_be_asked() -> None:
    def body() -> str:
        """Fail."""
        return ""

    context = ToolContext[Any](None, tool_name="body", tool_call_id="c", tool_arguments="{}")
    silent = function_tool(body, failure_error_function=None)
    assert await sdk.failure_text(silent, context, ValueError("x")) is None
    sentence = await sdk.failure_text(function_tool(body), context, ValueError("secret"))
    assert sentence is not None
    assert "secret" not in sentence


@pytest.mark.sdk_fact("internal.formatter-can-be-taken-away")
async def test_without_a_formatter_a_tool_raises() -> None:
    @function_tool
    def fail() -> str:
        """Fail."""
        raise ValueError("boom")

    assert isinstance(sdk.without_failure_formatter(fail), FunctionTool)
    model = script(response(call("fail", "c1")))
    with pytest.raises(Exception, match="boom"):
        await Runner.run(Agent(name="A", model=model, tools=[fail]), "go")


@pytest.mark.sdk_fact("internal.approval-function")
async def test_the_approval_rule_of_a_tool_can_be_asked() -> None:
    async def rule(_context: Any, arguments: dict[str, Any], _call_id: str) -> bool:
        return arguments["x"] > 1

    def body(x: int) -> str:
        """Do."""
        return ""

    tool = function_tool(body, needs_approval=rule)
    context = RunContextWrapper[Any](None)
    assert not await sdk.needs_approval(tool, context, '{"x": 1}', "c")
    assert await sdk.needs_approval(tool, context, '{"x": 2}', "c")
    assert await sdk.needs_approval(tool, context, "{", "c")


@pytest.mark.sdk_fact("internal.state-keys")
async def test_the_parts_of_a_run_state_that_are_cut_out_and_read() -> None:
    model = script(response(call("ping", "c1")), response(says("done")))
    agent = Agent[Any](name="A", model=model, tools=[ping])
    stopped = await Runner.run(agent, [{"role": "user", "content": "go"}], context={"a": 1})
    state = stopped.to_state().to_json()
    assert sdk.can_read_state(state)
    assert not sdk.can_read_state({**state, sdk.STATE_SCHEMA: "99.0"})
    assert not sdk.needs_another_model_call(state)
    assert state[sdk.STATE_ORIGINAL_INPUT] == [{"role": "user", "content": "go"}]
    assert state[sdk.STATE_CONTEXT][sdk.STATE_CONTEXT_VALUE] == {"a": 1}
    assert sdk.STATE_CONTEXT_META in state[sdk.STATE_CONTEXT]
    assert state[sdk.STATE_CURRENT_TURN] == 1
    context = RunContextWrapper[Any](None)
    restored = await RunState.from_json(agent, state, context_override=context)
    [pending] = restored.get_interruptions()
    # The context given at restoring is the one that decisions and usage go to.
    context.approve_tool(pending)
    resumed = await Runner.run(agent, restored)
    assert resumed.final_output == "done"
    assert resumed.context_wrapper is context


@pytest.mark.sdk_fact("internal.finished-calls")
async def test_the_items_of_a_run_state_and_its_finished_calls_can_be_told() -> None:
    model = script(
        response(call("ping", "c1")), response(says("so"), call("ping", "c2")), response(says("x"))
    )
    agent = Agent[Any](name="A", model=model, tools=[ping])
    first = await Runner.run(agent, "go")
    state = first.to_state()
    state.approve(first.interruptions[0])
    second = (await Runner.run(agent, state)).to_state().to_json()
    kinds = [(item["type"], item.get("call_id")) for item in sdk.response_items(second)]
    assert kinds == [("message", None), ("function_call", "c2")]
    turn = [item.get("call_id") for item in sdk.turn_items(second)]
    assert [call_id for call_id in turn if call_id] == ["c1", "c1", "c1", "c2", "c2"]
    # A handoff filter may take what a call needs out of a run.
    for part in ("session_items", "generated_items"):
        second[part] = [i for i in second[part] if "output" not in i["raw_item"]]
    with pytest.raises(UserError) as refusal:
        await RunState.from_json(agent, second)
    assert sdk.misses_finished_call(refusal.value)
    assert not sdk.misses_finished_call(UserError("other"))
    restored = await RunState.from_json(agent, sdk.without_finished_calls(second))
    [pending] = restored.get_interruptions()
    restored.approve(pending)
    assert (await Runner.run(agent, restored)).final_output == "x"


@pytest.mark.sdk_fact("internal.run-again-step")
async def test_a_run_stopped_after_a_handoff_tells_that_it_goes_on() -> None:
    model = script(response(call("transfer_to_b", "h1")), response(says("done")))
    agent = Agent(name="a", model=model, handoffs=[Agent(name="b", model=model)])
    result = Runner.run_streamed(agent, "go")
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            result.cancel(mode="after_turn")
    assert sdk.needs_another_model_call(result.to_state().to_json())
    assert len(model.calls) == 1


@pytest.mark.sdk_fact("nested.state-stands-in-the-outer-state")
async def test_the_state_of_a_nested_run_stands_within_the_outer_one() -> None:
    inner = Agent[Any](name="b", model=script(response(call("ping", "n1"))), tools=[ping])
    model = script(response(call("inner", "c1", input="x")))
    agent = Agent[Any](name="a", model=model, tools=[inner.as_tool("inner", "Ask.")])
    stopped = await Runner.run(agent, "go", context={"secret": 1})
    state = stopped.to_state().to_json()
    [nested] = sdk.nested_states(state)
    assert nested[sdk.STATE_CURRENT_AGENT]["name"] == "b"
    assert nested[sdk.STATE_CONTEXT][sdk.STATE_CONTEXT_VALUE] == {"secret": 1}
    assert list(sdk.nested_states({})) == []


@pytest.mark.sdk_fact("internal.cut-off-answer")
async def test_a_streamed_chat_answer_with_nothing_in_it_says_that_it_was_cut_off() -> None:
    way = Way("chat", streams=True)
    reply = {"reasoning": ["Hm."], "incomplete": "max_output_tokens"}
    async with provider(way, reply) as (_, config):
        result = Runner.run_streamed(Agent(name="a"), "go", run_config=config)
        with pytest.raises(ModelBehaviorError) as cut_off:
            [event async for event in result.stream_events()]
    assert sdk.says_cut_off(cut_off.value)
    assert not sdk.says_cut_off(ModelBehaviorError("the stream ended"))


@pytest.mark.sdk_fact("internal.trace-readers")
def test_a_trace_has_a_reader_where_a_key_or_a_processor_of_the_application_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_trace_processors([default_processor()])
    try:
        assert not sdk.has_trace_reader(None)
        assert not sdk.has_trace_reader({})
        assert sdk.has_trace_reader({"api_key": "x"})
        set_trace_processors([default_processor(), BatchTraceProcessor(ConsoleSpanExporter())])
        assert sdk.has_trace_reader(None)
        set_trace_processors([default_processor()])
        # Read when a Step begins, because a program may load its settings late.
        monkeypatch.setattr(default_exporter(), "_api_key", "x")
        assert sdk.has_trace_reader(None)
    finally:
        set_trace_processors([])


@pytest.mark.sdk_fact("internal.model-cleanup")
async def test_a_model_is_told_that_a_run_has_ended_and_so_is_one_that_is_wrapped() -> None:
    class Closing(ScriptedModel):
        """A model that remembers the runs that ended."""

        async def _cleanup_on_run_end(self, owner: object) -> None:
            ended.append(owner)

    ended: list[object] = []
    model = Closing([response(says("done"))])
    await Runner.run(Agent(name="A", model=model), "go")
    [owner] = ended
    await sdk.clean_up_model(model, owner)
    assert ended == [owner, owner]
