"""Agents, tools and the model of a plan."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
from agents import (
    Agent,
    FunctionToolResult,
    GuardrailFunctionOutput,
    Model,
    ModelBehaviorError,
    ModelResponse,
    ModelSettings,
    StopAtTools,
    Tool,
    ToolsToFinalOutputResult,
    Usage,
    handoff,
    input_guardrail,
    output_guardrail,
)
from agents.extensions.handoff_filters import remove_all_tools
from agents.testing import ModelStep, ScriptedModel
from equivalence_plans import AgentPlan, Plan, Said
from equivalence_tools import Shelves, make_tool
from forked_steps import reach
from openai.types.responses import (
    ResponseFunctionWebSearch,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseReasoningItem,
)
from openai.types.responses.response_function_web_search import ActionSearch
from openai.types.responses.response_reasoning_item import Summary
from pydantic import BaseModel
from stepped_session import call, says


class Answer(BaseModel):
    """A structured answer."""

    value: int


@input_guardrail(run_in_parallel=False)
async def no_stopping(_context: Any, _agent: Any, value: Any) -> GuardrailFunctionOutput:
    """Trip on one question."""
    text = value if isinstance(value, str) else value[-1].get("content")
    return GuardrailFunctionOutput(None, tripwire_triggered=text == "stop here")


@output_guardrail
async def no_never(_context: Any, _agent: Any, value: Any) -> GuardrailFunctionOutput:
    """Trip on one answer."""
    return GuardrailFunctionOutput(None, tripwire_triggered=value == "never say this")


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
        turn, number = self.place
        speaker = self._speaker(*args, **kwargs)
        if not self._moves_on:
            reach(f"model {turn}.{number}")
        return await speaker.get_response(*args, **kwargs)

    def _responses(self, turn: int, number: int) -> tuple[Said, ...]:
        responses = self._plan.turns[turn][1]
        return responses[number] if number < len(responses) else (Said("text", "nothing more"),)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        turn, number = self.place
        if any(said.kind == "search" for said in self._responses(turn, number)):
            # The scripted model cannot stream those, so it is asked for a whole response.
            raise NotImplementedError
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
        if self._plan.model_error is not None and self._plan.model_error[:2] == (turn, number):
            raise _model_error(self._plan.model_error[2])
        outputs = [
            _output(said, f"{turn}_{number}_{position}")
            for position, said in enumerate(self._responses(turn, number))
        ]
        tokens = 10 + number
        usage = Usage(requests=1, input_tokens=tokens, output_tokens=5, total_tokens=tokens + 5)
        return ScriptedModel([ModelStep(output=outputs, usage=usage)])


def _model_error(kind: str) -> Exception:
    request = httpx2.Request("POST", "http://model.invalid")
    match kind:
        case "refused":
            response = httpx2.Response(400, request=request)
            return openai.BadRequestError("too long", response=response, body=None)
        case "unreachable":
            return openai.APIConnectionError(request=request)
        case "broken":
            return ModelBehaviorError("broken answer")
        case _:
            return LookupError("the model's own")


def _output(said: Said, place: str) -> Any:
    match said.kind:
        case "refusal":
            return ResponseOutputMessage(
                id=f"msg_{place}",
                type="message",
                role="assistant",
                status="completed",
                content=[ResponseOutputRefusal(type="refusal", refusal=f"no: {said.value}")],
            )
        case "search":
            return ResponseFunctionWebSearch(
                id=said.call_id,
                type="web_search_call",
                status="completed",
                action=ActionSearch(type="search", query=said.value),
            )
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
    # Each agent has an agent in Steps of its own: it may stand in one place only.
    tools = {name: make_tool(name) for agent in plan.agents for name in agent.tools}
    agents = {agent.name: _agent(agent, tools, model) for agent in plan.agents}
    for planned in plan.agents:
        agents[planned.name].handoffs = [
            agents[name]
            if position % 2
            else handoff(
                agents[name],
                input_filter=remove_all_tools if planned.filters_handoffs else None,
            )
            for position, name in enumerate(planned.handoffs)
        ]
    # Handoffs hold their targets weakly, so the first agent keeps the whole graph.
    start = agents[plan.agents[0].name]
    start.__dict__["graph"] = agents
    return start


def _agent(planned: AgentPlan, tools: dict[str, Tool], model: Model) -> Agent[Any]:
    return Agent(
        name=planned.name,
        instructions=f"I am {planned.name}",
        model=model,
        tools=[tools[name] for name in planned.tools],
        mcp_servers=[Shelves()] if planned.has_server else [],
        model_settings=ModelSettings(tool_choice="required" if planned.requires_tools else None),
        output_type=Answer if planned.is_structured else None,
        input_guardrails=[no_stopping] if planned.has_guardrails else [],
        output_guardrails=[no_never] if planned.has_guardrails else [],
        tool_use_behavior=_behavior(planned),
    )


def _behavior(planned: AgentPlan) -> Any:
    if planned.stops_on_tool:
        return "stop_on_first_tool"
    if planned.decides:
        return _decide
    if planned.stops_at:
        return StopAtTools(stop_at_tool_names=[planned.stops_at])
    return "run_llm_again"


def _decide(_context: Any, results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
    """End with a text made of the values when two tools, or one that adds, have run."""
    is_over = len(results) > 1 or any(result.tool.name == "add" for result in results)
    text = ", ".join(f"{result.tool.name}={result.output!r}" for result in results)
    return ToolsToFinalOutputResult(is_final_output=is_over, final_output=text)
