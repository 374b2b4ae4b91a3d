"""How the SDK asks the approval rule of a function tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from agents import (
    Agent,
    FunctionTool,
    RunContextWrapper,
    Runner,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    UserError,
    function_tool,
    tool_input_guardrail,
)
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel
from sdk_runs import USER
from stepped_session import script

from dex_agents_openai_agents import _sdk_internals as sdk


class Order(BaseModel):
    """An argument of the application's own."""

    amount: int


@tool_input_guardrail
def reject(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Keep every body from running."""
    return ToolGuardrailFunctionOutput.reject_content("not run")


def plain(x: int) -> str:
    """Do it."""
    raise AssertionError("ran")


def with_default(x: int, limit: int = 10) -> str:
    """Do it."""
    raise AssertionError("ran")


def with_model(order: Order) -> str:
    """Do it."""
    raise AssertionError("ran")


def ruled(body: Callable[..., Any], asked: list[Any]) -> FunctionTool:
    """A tool of which calls with an `x` above 1 need approval."""

    async def rule(_context: Any, arguments: dict[str, Any], _call_id: str) -> bool:
        asked.append(arguments)
        return arguments["x"] > 1

    return function_tool(body, name_override="it", needs_approval=rule)


async def ask_in_a_run(tool: FunctionTool, arguments: str) -> bool:
    """Ask by public means alone: whether a run stops for the call, with a body that cannot run."""
    tool.tool_input_guardrails = [reject]
    recorded = ResponseFunctionToolCall(
        type="function_call", call_id="c1", name="it", arguments=arguments
    )
    probe = Agent[Any](
        name="A", model=script([recorded]), tools=[tool], tool_use_behavior="stop_on_first_tool"
    )
    return bool((await Runner.run(probe, USER, max_turns=1)).interruptions)


async def ask_directly(tool: FunctionTool, arguments: str) -> bool:
    return await sdk.needs_approval(tool, RunContextWrapper[Any](None), arguments, "c1")


CASES: dict[str, tuple[Callable[..., Any], str, bool, bool]] = {
    "the rule says no": (plain, '{"x": 1}', False, True),
    "the rule says yes": (plain, '{"x": 2}', True, True),
    "a default is filled": (with_default, '{"x": 1}', True, False),
    "the default is given": (with_default, '{"x": 1, "limit": 10}', False, True),
    "a value is coerced": (plain, '{"x": "1"}', True, False),
    "an argument is a model": (with_model, '{"order": {"amount": 1}}', True, False),
    "no JSON": (plain, "{", True, False),
    "no object": (plain, "[]", True, False),
}


@pytest.mark.sdk_fact("approval.only-unchanged-arguments-reach-the-rule")
@pytest.mark.parametrize("case", CASES)
async def test_the_rule_is_asked_about_arguments_that_stay_as_the_model_wrote_them(
    case: str,
) -> None:
    body, arguments, is_needed, is_asked = CASES[case]
    asked: list[Any] = []
    assert await ask_directly(ruled(body, asked), arguments) == is_needed
    assert bool(asked) == is_asked


@pytest.mark.sdk_fact("approval.a-run-answers-the-same")
@pytest.mark.parametrize("case", CASES)
async def test_a_run_that_cannot_reach_the_body_stops_where_the_rule_asks_for_approval(
    case: str,
) -> None:
    body, arguments, is_needed, is_asked = CASES[case]
    asked: list[Any] = []
    assert await ask_in_a_run(ruled(body, asked), arguments) == is_needed
    assert bool(asked) == is_asked


@pytest.mark.sdk_fact("approval.a-failing-rule-raises")
async def test_a_rule_that_raises_raises_whichever_way_it_is_asked() -> None:
    error = ZeroDivisionError()

    async def rule(_context: Any, _arguments: Any, _call_id: str) -> bool:
        raise error

    tool = function_tool(plain, name_override="it", needs_approval=rule)
    with pytest.raises(ZeroDivisionError):
        await ask_directly(tool, '{"x": 1}')
    with pytest.raises(UserError) as raised:
        await ask_in_a_run(tool, '{"x": 1}')
    assert raised.value.__cause__ is error
