"""The tools of the plans, each with one thing of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunContextWrapper,
    Tool,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolOutputGuardrailData,
    ToolOutputImage,
    Usage,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)
from forked_steps import reach, reach_inside_tool
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from mcp.types import Tool as MCPTool
from mcp_shop import ServerInMemory
from pydantic import BaseModel
from stepped_session import call, says

from dex_agents_openai_agents import get_current_deferred_tool_execution, stepwise_agent_tool


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


@tool_input_guardrail
def no_entry(_data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Trip always."""
    return ToolGuardrailFunctionOutput.raise_exception()


@tool_output_guardrail
def no_secrets(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Cover one output."""
    if "secret" in str(data.output):
        return ToolGuardrailFunctionOutput.reject_content("covered")
    return ToolGuardrailFunctionOutput.allow()


class InnerModel(Model):
    """The model of an agent used as a tool: it repeats what it was asked."""

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        reach_inside_tool()
        text = input if isinstance(input, str) else input[-1]["content"]
        usage = Usage(requests=1, input_tokens=3, output_tokens=1, total_tokens=4)
        return ModelResponse(output=[says(f"inner {text}")], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class DeepModel(Model):
    """The model of an agent used as a tool that calls a tool itself."""

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        reach_inside_tool()
        given = [{"content": input}] if isinstance(input, str) else list(input)
        seen = [item["output"] for item in given if item.get("type") == "function_call_output"]
        asked = given[0]["content"]
        output = says(f"deep {asked}: {seen[-1]}") if seen else call("peek", f"in_{asked}", x=asked)
        usage = Usage(requests=1, input_tokens=4, output_tokens=2, total_tokens=6)
        return ModelResponse(output=[output], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class Shelves(ServerInMemory):
    """A server in memory."""

    @property
    def name(self) -> str:
        return "shelves"

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        hints = {
            "stock": ToolAnnotations(read_only_hint=True),
            "label": ToolAnnotations(idempotent_hint=True),
            "shelf": None,
        }
        schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
        return [
            MCPTool(name=name, description=name, input_schema=schema, annotations=annotations)
            for name, annotations in hints.items()
        ]

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        _in_flight()
        x = (arguments or {}).get("x")
        if tool_name == "shelf":
            image = ImageContent(type="image", data="AAAA", mime_type="image/png")
            return CallToolResult(content=[TextContent(type="text", text=f"shelf {x}"), image])
        text = TextContent(type="text", text=f"{tool_name} {x}")
        return CallToolResult(content=[text], is_error=x == "secret")


def _deep_agent(name: str) -> Agent[Any]:
    def peek(x: str) -> str:
        """Peek."""
        reach_inside_tool()
        return f"peeked {x}"

    return Agent(name=name, model=DeepModel(), tools=[function_tool(peek)])


def _only_a(_context: RunContextWrapper[Any], agent: Any) -> bool:
    return agent.name == "a"


def make_tool(name: str) -> Tool:
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
        case "raises":
            return function_tool(fails, name_override="raises", failure_error_function=None)
        case "barred":
            return function_tool(echo, name_override="barred", tool_input_guardrails=[no_entry])
        case "sometimes":
            return function_tool(info, name_override="sometimes", is_enabled=_only_a)
        case "deep":
            return _deep_agent("Deep").as_tool("deep", "Ask deeper.")
        case "steps":
            return stepwise_agent_tool(_deep_agent("Steps"), "steps", "Ask in Steps.")
        case "inner":
            return Agent(name="Inner", model=InnerModel()).as_tool("inner", "Ask inside.")
        case _:
            raise AssertionError(name)
