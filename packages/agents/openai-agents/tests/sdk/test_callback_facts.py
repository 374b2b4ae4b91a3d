"""When guardrails and hooks are called in a turn that is resumed between its model calls."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunHooks,
    Runner,
    Tool,
    ToolExecutionConfig,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    function_tool,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
)
from agents.testing import ModelStep
from sdk_runs import USER, approved, pending_ids, restored, soft_stopped, stored
from stepped_session import call, outputs, response, says, script


@function_tool(needs_approval=True)
def look(x: int) -> str:
    """Look."""
    return f"saw {x}"


async def over_two_steps(agent: Agent[Any], **options: Any) -> Any:
    """Stop at the gate, then go on to the end, with JSON between."""
    stopped = await soft_stopped(agent, USER, **options)
    return await soft_stopped(agent, await approved(agent, stopped), **options)


def two_steps() -> Any:
    return script(response(call("look", "c1", x=1)), response(says("done")))


@pytest.mark.sdk_fact("callback.input-guardrails-run-once")
async def test_input_guardrails_run_in_the_first_step_and_their_results_are_in_the_state() -> None:
    checked: list[Any] = []

    @input_guardrail
    async def check(_context: Any, _agent: Any, value: Any) -> GuardrailFunctionOutput:
        checked.append(value)
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    agent = Agent[Any](name="A", model=two_steps(), tools=[look], input_guardrails=[check])
    stopped = await soft_stopped(agent, USER)
    [kept] = stored(stopped)["input_guardrail_results"]
    assert kept["output"]["tripwireTriggered"] is False
    result = await soft_stopped(agent, await approved(agent, stopped))
    assert result.final_output == "done"
    assert checked == [USER]


@pytest.mark.sdk_fact("callback.late-tripwires-still-stop")
async def test_a_parallel_guardrail_that_trips_after_the_response_still_stops_the_run() -> None:
    answered = asyncio.Event()

    async def answer(_call: Any) -> Any:
        answered.set()
        return [call("look", "c1", x=1)]

    @input_guardrail
    async def late(_context: Any, _agent: Any, _value: Any) -> GuardrailFunctionOutput:
        await asyncio.wait_for(answered.wait(), 10)
        for _turn in range(20):
            await asyncio.sleep(0)
        return GuardrailFunctionOutput(None, tripwire_triggered=True)

    model = script(ModelStep.respond(answer))
    agent = Agent[Any](name="A", model=model, tools=[look], input_guardrails=[late])
    with pytest.raises(InputGuardrailTripwireTriggered):
        await soft_stopped(agent, USER)
    assert len(model.calls) == 1


@pytest.mark.sdk_fact("callback.output-guardrails-judge-the-answer")
async def test_output_guardrails_are_asked_about_the_final_answer_alone() -> None:
    checked: list[Any] = []

    @output_guardrail
    async def check(_context: Any, _agent: Any, value: Any) -> GuardrailFunctionOutput:
        checked.append(value)
        return GuardrailFunctionOutput(None, tripwire_triggered=value == "done")

    agent = Agent[Any](name="A", model=two_steps(), tools=[look], output_guardrails=[check])
    stopped = await soft_stopped(agent, USER)
    assert checked == []
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await soft_stopped(agent, await approved(agent, stopped))
    assert checked == ["done"]


class Log(RunHooks[Any]):
    """Hooks that remember what they saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.seen.append("agent start")

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        self.seen.append("llm start")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.seen.append("llm end")

    async def on_tool_start(self, context: Any, agent: Any, tool: Tool) -> None:
        self.seen.append(f"tool start {tool.name}")

    async def on_tool_end(self, context: Any, agent: Any, tool: Tool, result: object) -> None:
        self.seen.append(f"tool end {result}")


@pytest.mark.sdk_fact(
    "callback.agent-start-repeats",
    "callback.llm-hooks-per-call",
    "callback.tool-hooks-at-the-resume",
)
async def test_agent_start_repeats_after_a_resume_and_tool_hooks_fire_around_the_gate() -> None:
    log = Log()
    await over_two_steps(Agent[Any](name="A", model=two_steps(), tools=[look]), hooks=log)
    once = ["agent start", "llm start", "llm end"]
    assert log.seen == [*once, "tool start look", "tool end saw 1", *once]


@pytest.mark.sdk_fact("callback.agents-are-those-that-run")
async def test_instructions_guardrails_and_hooks_are_given_the_copy_that_runs() -> None:
    given: list[Any] = []

    def instructions(_context: Any, agent: Any) -> str:
        given.append(agent)
        return ""

    @input_guardrail
    async def check(_context: Any, agent: Any, _value: Any) -> GuardrailFunctionOutput:
        given.append(agent)
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    class Hooks(AgentHooks[Any]):
        async def on_start(self, context: Any, agent: Any) -> None:
            given.append(agent)

    original = Agent[Any](
        name="A",
        model=script(response(says("done"))),
        instructions=instructions,
        input_guardrails=[check],
        hooks=Hooks(),
    )
    copied = copy.copy(original)
    await Runner.run(copied, USER)
    assert len(given) == 3
    assert all(agent is copied for agent in given)


@pytest.mark.sdk_fact("callback.rejections-fire-no-tool-hooks")
async def test_a_rejected_call_fires_no_tool_hooks() -> None:
    log = Log()
    agent = Agent[Any](name="A", model=two_steps(), tools=[look])
    state = await restored(agent, await soft_stopped(agent, USER))
    state.reject(state.get_interruptions()[0], rejection_message="no")
    await soft_stopped(agent, state, hooks=log)
    assert not [entry for entry in log.seen if entry.startswith("tool")]


def judging_tool(asked: list[str], verdict: str) -> Any:
    @tool_input_guardrail
    def judge(_data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        asked.append("asked")
        if verdict == "reject":
            return ToolGuardrailFunctionOutput.reject_content("not that")
        return ToolGuardrailFunctionOutput.allow()

    def look(x: int) -> str:
        """Look."""
        return f"saw {x}"

    tool = function_tool(look, needs_approval=True)
    tool.tool_input_guardrails = [judge]
    return tool


@pytest.mark.sdk_fact("callback.tool-guardrails-wait-for-the-approval")
async def test_the_guardrails_of_a_tool_are_asked_at_the_resume_and_not_before() -> None:
    asked: list[str] = []
    agent = Agent[Any](name="A", model=two_steps(), tools=[judging_tool(asked, "allow")])
    stopped = await soft_stopped(agent, USER)
    assert asked == []
    await soft_stopped(agent, await approved(agent, stopped))
    assert asked == ["asked"]


@pytest.mark.sdk_fact("callback.pre-approval-guardrails-come-before-the-question")
@pytest.mark.parametrize("verdict", ["allow", "reject"])
async def test_guardrails_before_the_approval_keep_a_rejected_call_from_waiting(
    verdict: str,
) -> None:
    asked: list[str] = []
    model = two_steps()
    agent = Agent[Any](name="A", model=model, tools=[judging_tool(asked, verdict)])
    config = RunConfig(tool_execution=ToolExecutionConfig(pre_approval_tool_input_guardrails=True))
    result = await Runner.run(agent, USER, run_config=config)
    assert asked == ["asked"]
    assert pending_ids(result) == (["c1"] if verdict == "allow" else [])
    if verdict == "reject":
        assert outputs(model.calls[1].input) == ["not that"]
