"""What a runner derives from its configuration, and what the package offers."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from agents import Agent, RunConfig, function_tool
from stepped_session import call, response, says, script, session_of

import dex_agents_openai_agents
from dex_agents import (
    AgentDefinitionError,
    AgentFrameworkRunner,
    AgentSessionOptions,
    StepLimits,
    ToolEffect,
    ToolPolicy,
)
from dex_agents_openai_agents import OpenAIAgentsRunner, openai_agents_session_flow
from dex_agents_openai_agents._steps.run_context import ContextSource
from dex_agents_openai_agents._steps.runner_settings import RunnerSettings


@function_tool
def ping() -> str:
    """Answer."""
    return "pong"


def settings(config: RunConfig) -> RunnerSettings:
    return RunnerSettings(config, ContextSource(), None, 1, None, "last", True, 3)


def test_all_steps_of_a_turn_share_one_trace_in_the_group_of_the_session() -> None:
    derived = settings(RunConfig())
    first = derived.model_run_config("s", "turn-1")
    again = derived.tool_run_config("s", "turn-1")
    other = derived.model_run_config("s", "turn-2")
    assert first.group_id == again.group_id == other.group_id == "s"
    assert first.trace_id == again.trace_id != other.trace_id
    assert first.trace_id is not None
    assert first.trace_id.startswith("trace_")
    assert len(first.trace_id) == len("trace_") + 32


def test_the_applications_own_trace_settings_stay() -> None:
    config = RunConfig(group_id="g", trace_id="trace_mine", tracing_disabled=True)
    derived = settings(config).model_run_config("s", "turn-1")
    assert (derived.group_id, derived.trace_id) == ("g", "trace_mine")
    assert derived.tracing_disabled


def test_the_run_of_a_tool_cannot_reach_the_real_model() -> None:
    config = RunConfig(model="gpt", call_model_input_filter=lambda data: data.model_data)
    derived = settings(config).tool_run_config("s", "turn-1")
    assert derived.model is None
    assert derived.call_model_input_filter is None
    assert config.model == "gpt"


def test_the_runner_meets_the_contract() -> None:
    assert isinstance(OpenAIAgentsRunner(Agent(name="A")), AgentFrameworkRunner)


def test_the_flow_takes_policies_and_options_together() -> None:
    agent = Agent(name="A", tools=[ping])
    flow = openai_agents_session_flow(
        agent,
        flow_type="A",
        tool_policies={"ping": ToolPolicy(ToolEffect.READ)},
        default_tool_effect=ToolEffect.IDEMPOTENT_WRITE,
        interrupt_deadline=timedelta(hours=1),
        options=AgentSessionOptions(tool_limits=StepLimits(max_attempts=5)),
    )
    assert flow.get_flow_type() == "A"
    assert flow.options.tool_policies == {"ping": ToolPolicy(ToolEffect.READ)}
    assert flow.options.default_tool_effect is ToolEffect.IDEMPOTENT_WRITE
    assert flow.options.interrupt_deadline == timedelta(hours=1)
    assert flow.options.tool_limits.max_attempts == 5


def test_policies_inside_the_options_are_checked_too() -> None:
    options = AgentSessionOptions(tool_policies={"pong": ToolPolicy(ToolEffect.READ)})
    with pytest.raises(AgentDefinitionError, match="'pong'"):
        openai_agents_session_flow(Agent(name="A", tools=[ping]), flow_type="A", options=options)


def test_both_kinds_of_context_are_refused() -> None:
    with pytest.raises(AgentDefinitionError, match="not both"):
        OpenAIAgentsRunner(
            Agent(name="A"), context={}, context_factory=lambda _session_id, _turn_id: {}
        )


def test_the_package_offers_the_names_of_its_documentation() -> None:
    assert set(dex_agents_openai_agents.__all__) == {
        "OpenAIAgentsRunner",
        "get_current_deferred_tool_execution",
        "openai_agents_session_flow",
        "stepwise_agent_tool",
    }


async def test_a_turn_without_tracing_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = script(response(call("ping", "c1")), response(says("done")))
    with caplog.at_level(logging.INFO):
        await session_of(
            Agent(name="A", model=model, tools=[ping]), context={"user": object()}
        ).turn("a secret prompt")
    assert not caplog.records
