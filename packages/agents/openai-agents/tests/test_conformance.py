"""The adapter keeps the contract of a runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx2
import openai
from agents import Agent, FunctionTool, Handoff, Tool, ToolOutputText, Usage, function_tool
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from dex_agents_openai_agents import OpenAIAgentsRunner, get_current_deferred_tool_execution
from dex_agents_testkit.conformance import (
    Ability,
    AdapterConformance,
    ModelFailure,
    ModelReply,
    ScenarioTool,
    Stage,
)


class TestOpenAIAgents(AdapterConformance):
    # Function tools say nothing about their effects; those of MCP servers do, in `test_mcp`.
    abilities = frozenset(Ability) - {Ability.EFFECT_HINTS}

    def make_runner(self, stage: Stage) -> OpenAIAgentsRunner:
        model = model_double(stage)
        tools: list[Tool] = [tool_double(stage, tool) for tool in stage.scenario.tools]
        second = Agent(name="second", model=model, tools=tools)
        first = Agent(name="first", model=model, tools=tools, handoffs=[second])
        return OpenAIAgentsRunner(first)


def model_double(stage: Stage) -> ScriptedModel:
    """A model that asks the stage for every answer."""

    async def answer(call: ModelCall) -> ModelStep:
        reply = await stage.call_model(call.input)
        if reply.failure is not None:
            raise provider_error(reply.failure)
        return ModelStep(output=output_items(reply, call.handoffs), usage=usage_of(reply))

    return ScriptedModel([ModelStep.respond(answer)] * 20)


def tool_double(stage: Stage, tool: ScenarioTool) -> FunctionTool:
    """A function tool that runs on the stage."""

    @function_tool(name_override=tool.name, needs_approval=tool.needs_approval)
    async def run(key: str) -> Any:
        execution = get_current_deferred_tool_execution()
        text = await stage.run_tool(tool.name, key, execution and execution.idempotency_key)
        return [ToolOutputText(text=part) for part in tool.parts] or text

    return run


def output_items(reply: ModelReply, handoffs: Sequence[Handoff[Any, Any]]) -> list[Any]:
    """What the provider would send."""
    items: list[Any] = [assistant_message(reply.text)] if reply.text else []
    if reply.hands_over:
        items.append(function_call(handoffs[0].tool_name, {}, call_id="handoff"))
    items += [
        function_call(call.tool_name, call.arguments, call_id=call.tool_call_id)
        for call in reply.tool_calls
    ]
    return items


def usage_of(reply: ModelReply) -> Usage:
    """The tokens as the SDK counts them."""
    told = reply.usage
    return Usage(
        requests=1,
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        total_tokens=told.total_tokens,
    )


def provider_error(failure: ModelFailure) -> openai.APIStatusError:
    """What the SDK's client raises when the provider refuses."""
    status = 400 if failure.is_final else 429
    headers = {} if failure.retry_after is None else {"retry-after": str(failure.retry_after)}
    request = httpx2.Request("POST", "http://provider.invalid/v1/responses")
    response = httpx2.Response(status, headers=headers, request=request)
    return openai.APIStatusError(failure.message, response=response, body=None)
