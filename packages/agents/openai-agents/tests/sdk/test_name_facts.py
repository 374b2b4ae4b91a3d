"""What a tool is called: by itself, by its pending calls, and where names collide."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from agents import Agent, FunctionTool, RunConfig, Runner, ToolSearchTool, UserError, function_tool
from agents.tool import tool_namespace
from native_calls import whole
from openai.types.responses import ResponseFunctionToolCall
from sdk_runs import USER, approved
from stepped_session import call, outputs, response, says, script, session_of


def lookup() -> str:
    """Look up."""
    return "found"


def plain() -> FunctionTool:
    return function_tool(lookup, needs_approval=True)


def namespaced() -> FunctionTool:
    [tool] = tool_namespace(name="crm", description="CRM.", tools=[plain()])
    return tool


def deferred() -> FunctionTool:
    return function_tool(lookup, needs_approval=True, defer_loading=True)


def lookup_call(namespace: str | None) -> ResponseFunctionToolCall:
    """A call as the provider makes it; for a deferred tool it makes up a namespace."""
    return ResponseFunctionToolCall(
        type="function_call", call_id="c1", name="lookup", arguments="{}", namespace=namespace
    )


FORMS = {
    "plain": (plain, None, "lookup"),
    "namespaced": (namespaced, "crm", "crm.lookup"),
    "deferred": (deferred, "lookup", "lookup"),
}


@pytest.mark.sdk_fact("name.tool-and-call-agree", "kind.deferred-tools-can-be-gated")
@pytest.mark.parametrize("form", FORMS)
async def test_a_tool_and_its_pending_call_have_the_same_qualified_name(form: str) -> None:
    make, namespace, name = FORMS[form]
    tool = make()
    model = script(whole(lookup_call(namespace)), response(says("done")))
    agent = Agent[Any](name="A", model=model, tools=[tool, ToolSearchTool()])
    result = await Runner.run(agent, USER)
    [item] = result.interruptions
    assert tool.qualified_name == item.qualified_name == name
    assert (await Runner.run(agent, await approved(agent, result))).final_output == "done"


@pytest.mark.sdk_fact("kind.deferred-tools-can-be-gated")
async def test_a_deferred_tool_runs_as_a_step() -> None:
    tool = function_tool(lookup, defer_loading=True)
    model = script(whole(lookup_call("lookup")), response(says("done")))
    agent = Agent[Any](name="A", model=model, tools=[tool, ToolSearchTool()])
    turn = await session_of(agent).turn("go")
    assert turn.records["c1"].tool_name == "lookup"
    assert outputs(model.calls[1].input) == ["found"]


@pytest.mark.sdk_fact("name.last-of-equal-names-wins")
async def test_of_two_tools_of_one_name_the_last_one_runs_unless_a_collision_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def other() -> str:
        """Look up."""
        return "other"

    twins: list[Any] = [function_tool(lookup), function_tool(other, name_override="lookup")]
    model = script(response(call("lookup", "c1")), response(says("done")))
    agent = Agent[Any](name="A", model=model, tools=twins)
    with caplog.at_level(logging.WARNING):
        await Runner.run(agent, USER)
    assert outputs(model.calls[1].input) == ["other"]
    assert "collision" in caplog.text
    with pytest.raises(UserError):
        await Runner.run(agent, USER, run_config=RunConfig(tool_name_collision_policy="error"))
