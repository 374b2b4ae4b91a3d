"""Agents, tools and the model of a plan."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    Model,
    ModelResponse,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolOutputGuardrailData,
    ToolOutputImage,
    Usage,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agents.testing import ModelStep, ScriptedModel
from equivalence_plans import AgentPlan, Plan, Said
from forked_steps import reach
from openai.types.responses import ResponseReasoningItem
from openai.types.responses.response_reasoning_item import Summary
from pydantic import BaseModel
from stepped_session import call, says

from dex_agents_openai_agents import get_current_deferred_tool_execution


class Answer(BaseModel):
    """A structured answer."""

    value: int


class Weather(BaseModel):
    """A typed tool output."""

    city: str
    t: int


def _in_flight() -> None:
    execution = get_current_deferred_tool_execution()
    if execution is not None:
        reach(f"tool {execution.tool_call.tool_call_id}")


@tool_input_guardrail
def no_bad_input(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Refuse one argument."""
    if "bad" in data.context.tool_arguments:
        return ToolGuardrailFunctionOutput.reject_content("refused")
    return ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail
def no_secrets(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Cover one output."""
    if "secret" in str(data.output):
        return ToolGuardrailFunctionOutput.reject_content("covered")
    return ToolGuardrailFunctionOutput.allow()


@input_guardrail(run_in_parallel=False)
async def no_stopping(_context: Any, _agent: Any, value: Any) -> GuardrailFunctionOutput:
    """Trip on one question."""
    text = value if isinstance(value, str) else value[-1].get("content")
    return GuardrailFunctionOutput(None, tripwire_triggered=text == "stop here")


@output_guardrail
async def no_never(_context: Any, _agent: Any, value: Any) -> GuardrailFunctionOutput:
    """Trip on one answer."""
    return GuardrailFunctionOutput(None, tripwire_triggered=value == "never say this")


class InnerModel(Model):
    """The model of an agent used as a tool: it repeats what it was asked."""

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        text = input if isinstance(input, str) else input[-1]["content"]
        usage = Usage(requests=1, input_tokens=3, output_tokens=1, total_tokens=4)
        return ModelResponse(output=[says(f"inner {text}")], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def make_tool(name: str) -> FunctionTool:
    """Return one of the tools that plans use."""

    def echo(x: str) -> str:
        """Echo."""
        _in_flight()
        return f"echo {x}"

    def add(a: int, b: int) -> int:
        """Add."""
        _in_flight()
        return a + b

    async def info() -> dict[str, Any]:
        """Tell."""
        _in_flight()
        return {"a": 1, "b": None}

    def image() -> ToolOutputImage:
        """Show."""
        _in_flight()
        return ToolOutputImage(image_url="data:image/png;base64,AAAA")

    def typed() -> Weather:
        """Look."""
        _in_flight()
        return Weather(city="Oslo", t=3)

    def politely() -> str:
        """Answer, and have a text for failures."""
        _in_flight()
        return "at your service"

    def fails() -> str:
        """Fail."""
        _in_flight()
        raise ValueError("broken")

    async def pay(amount: int) -> str:
        """Pay."""
        _in_flight()
        return f"paid {amount}"

    def sorry(_context: Any, error: Exception) -> str:
        return f"sorry, {type(error).__name__}"

    match name:
        case "echo":
            return function_tool(echo)
        case "checked":
            return function_tool(
                echo, name_override="checked", tool_input_guardrails=[no_bad_input]
            )
        case "hushed":
            return function_tool(echo, name_override="hushed", tool_output_guardrails=[no_secrets])
        case "add":
            return function_tool(add)
        case "info":
            return function_tool(info)
        case "image":
            return function_tool(image)
        case "typed":
            return function_tool(typed, output_type=Weather)
        case "politely":
            return function_tool(politely, failure_error_function=sorry)
        case "fails":
            return function_tool(fails)
        case "fails_politely":
            return function_tool(
                fails, name_override="fails_politely", failure_error_function=sorry
            )
        case "pay":
            return function_tool(pay, needs_approval=True)
        case "inner":
            return Agent(name="Inner", model=InnerModel()).as_tool("inner", "Ask inside.")
        case _:
            raise AssertionError(name)


class PlannedModel(Model):
    """A model that says what a plan wants said, and records what it was sent.

    In a session the place in the plan is set from outside for each call, because a killed call is
    made again; in a plain run the model moves on by itself.

    Attributes:
        place: Turn and call that come next.
    """

    def __init__(self, plan: Plan, log: Path, *, moves_on: bool = False) -> None:
        self._plan = plan
        self._log = log
        self._moves_on = moves_on
        self.place: tuple[int, int] = (0, 0)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return await self._speaker(**kwargs).get_response(*args, **kwargs)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        turn, number = self.place
        speaker = self._speaker(*args, **kwargs)
        async for event in speaker.stream_response(*args, **kwargs):
            yield event
            # After the first event the call is in flight: it is paid for and not yet known.
            reach(f"model {turn}.{number}")

    def _speaker(
        self,
        system_instructions: Any,
        input: Any,
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        *_: Any,
        **__: Any,
    ) -> ScriptedModel:
        turn, number = self.place
        if self._moves_on:
            self.place = (turn, number + 1)
        record = {
            "place": [turn, number],
            "instructions": system_instructions,
            "input": input,
            "tools": [tool.name for tool in tools],
            "handoffs": [h.tool_name for h in handoffs],
            "structured": output_schema is not None and not output_schema.is_plain_text(),
            "tool_choice": model_settings.tool_choice,
        }
        with self._log.open("a") as file:
            file.write(json.dumps(record) + "\n")
        responses = self._plan.turns[turn][1]
        outputs = (
            [_output(said, f"{turn}_{number}") for said in responses[number]]
            if number < len(responses)
            else [says("nothing more", f"msg_{turn}_{number}")]
        )
        tokens = 10 + number
        usage = Usage(requests=1, input_tokens=tokens, output_tokens=5, total_tokens=tokens + 5)
        return ScriptedModel([ModelStep(output=outputs, usage=usage)])


def _output(said: Said, place: str) -> Any:
    match said.kind:
        case "text":
            return says(said.value, f"msg_{place}")
        case "reasoning":
            return ResponseReasoningItem(
                id=said.call_id,
                type="reasoning",
                summary=[Summary(type="summary_text", text=said.value)],
                encrypted_content=f"secret {said.call_id}",
            )
        case "call":
            output = call(said.name, said.call_id)
            output.arguments = said.value
            return output


def build_agents(plan: Plan, model: Model) -> Agent[Any]:
    """Return the first agent of a plan, with the whole graph behind it."""
    tools = {name: make_tool(name) for agent in plan.agents for name in agent.tools}
    agents = {agent.name: _agent(agent, tools, model) for agent in plan.agents}
    for planned in plan.agents:
        agents[planned.name].handoffs = [
            agents[name] if position % 2 else handoff(agents[name])
            for position, name in enumerate(planned.handoffs)
        ]
    # Handoffs hold their targets weakly, so the first agent keeps the whole graph.
    start = agents[plan.agents[0].name]
    start.__dict__["graph"] = agents
    return start


def _agent(planned: AgentPlan, tools: dict[str, FunctionTool], model: Model) -> Agent[Any]:
    return Agent(
        name=planned.name,
        instructions=f"I am {planned.name}",
        model=model,
        tools=[tools[name] for name in planned.tools],
        output_type=Answer if planned.is_structured else None,
        input_guardrails=[no_stopping] if planned.has_guardrails else [],
        output_guardrails=[no_never] if planned.has_guardrails else [],
        tool_use_behavior="stop_on_first_tool" if planned.stops_on_tool else "run_llm_again",
    )
