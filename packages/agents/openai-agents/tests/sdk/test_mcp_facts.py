"""What MCP servers bring to an agent, and what of it a gate can hold."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from agents import Agent, AgentsException, FunctionTool, RunContextWrapper, Runner, Tool, UserError
from agents.tool import set_function_tool_failure_error_function
from mcp_shop import Shop
from sdk_runs import USER, pending_ids
from stepped_session import call, outputs, response, says, script


class Gated(Agent[Any]):
    """An agent whose listed tools all wait for approval."""

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        gates: list[Tool] = []
        for tool in await super().get_all_tools(run_context):
            gate = copy.copy(tool)
            assert isinstance(gate, FunctionTool)
            gate.needs_approval = True
            gates.append(gate)
        return gates


@pytest.mark.sdk_fact("mcp.tools-can-be-gated-where-they-are-listed")
async def test_tools_of_a_server_are_gated_by_the_agents_own_listing() -> None:
    shop = Shop()
    model = script(response(call("stock", "c1", item="a"), call("order", "c2", item="b")))
    result = await Runner.run(Gated(name="A", model=model, mcp_servers=[shop]), USER)
    assert pending_ids(result) == ["c1", "c2"]
    assert [item.qualified_name for item in result.interruptions] == ["stock", "order"]
    assert {item.tool_origin.type for item in result.interruptions if item.tool_origin} == {"mcp"}
    assert shop.runs == []


async def listed(shop: Shop) -> dict[str, FunctionTool]:
    tools = await Agent(name="A", mcp_servers=[shop]).get_all_tools(RunContextWrapper(None))
    return {tool.name: tool for tool in tools if isinstance(tool, FunctionTool)}


@pytest.mark.sdk_fact("mcp.hints-are-on-the-tool")
async def test_a_listed_tool_carries_the_hints_of_its_server_or_none() -> None:
    tools = await listed(Shop())
    hints = {name: tool.mcp_annotations for name, tool in tools.items()}
    assert hints["stock"] is not None
    assert hints["stock"].read_only_hint is True
    assert hints["stock"].idempotent_hint is None
    assert hints["label"] is not None
    assert hints["label"].idempotent_hint is True
    assert hints["order"] is None


@pytest.mark.sdk_fact("mcp.servers-rule-becomes-the-tools")
async def test_what_a_server_requires_approval_for_is_the_rule_of_the_listed_tool() -> None:
    tools = await listed(Shop(require_approval={"always": {"tool_names": ["stock"]}}))
    assert (tools["stock"].needs_approval, tools["label"].needs_approval) == (True, False)


async def read(name: str) -> Any:
    model = script(response(call(name, "c1", item="a")), response(says("done")))
    await Runner.run(Agent(name="A", model=model, mcp_servers=[Shop()]), USER)
    [output] = outputs(model.calls[1].input)
    return output


@pytest.mark.sdk_fact("mcp.results-are-parts", "mcp.error-flag-is-lost")
async def test_results_are_parts_and_do_not_tell_that_the_server_called_them_errors() -> None:
    assert [part["type"] for part in await read("picture")] == ["input_image"]
    assert await read("stock") == [{"type": "input_text", "text": "stock of a"}]
    assert await read("broken") == [{"type": "input_text", "text": "broken of a"}]


@pytest.mark.sdk_fact("mcp.transport-errors-are-sdk-errors")
async def test_a_server_that_cannot_be_reached_raises_an_error_of_the_sdk() -> None:
    tool = set_function_tool_failure_error_function((await listed(Shop()))["down"], None)
    agent = Agent[Any](name="A", model=script(response(call("down", "c1"))), tools=[tool])
    with pytest.raises(AgentsException) as raised:
        await Runner.run(agent, USER)
    assert not isinstance(raised.value, UserError), "the tool has wrapped it, not the run"
