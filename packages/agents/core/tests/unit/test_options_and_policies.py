"""Options and policies: defaults of the specification, and refusal of what cannot work."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dex_agents import (
    AgentDefinitionError,
    AgentSessionFlow,
    AgentSessionOptions,
    StepLimits,
    ToolEffect,
    ToolPolicy,
)
from dex_agents.runner import resolve_tool_policy


@pytest.mark.requirement("CORE-EFFECT-07", "CORE-STEP-17")
def test_the_defaults_are_those_of_the_specification() -> None:
    options = AgentSessionOptions()
    assert options.default_tool_effect is ToolEffect.UNCLASSIFIED
    assert options.agent_events_capacity_bytes == 10 * 1024 * 1024
    assert options.interrupt_deadline is None
    for limits in (options.model_limits, options.tool_limits):
        assert limits == StepLimits(
            timedelta(minutes=15), timedelta(minutes=2), 3, timedelta(minutes=30)
        )


@pytest.mark.requirement("CORE-EFFECT-04", "CORE-EFFECT-05")
@pytest.mark.parametrize(
    ("effect", "repeatable", "asks"),
    [
        (ToolEffect.READ, True, False),
        (ToolEffect.IDEMPOTENT_WRITE, True, False),
        (ToolEffect.NON_IDEMPOTENT_WRITE, False, True),
        (ToolEffect.UNCLASSIFIED, False, True),
    ],
)
def test_an_effect_decides_retries_and_approval(
    effect: ToolEffect, repeatable: bool, asks: bool
) -> None:
    assert effect.is_repeatable is repeatable
    assert ToolPolicy(effect).is_approval_required is asks
    assert ToolPolicy(effect, True).is_approval_required
    assert not ToolPolicy(effect, False).is_approval_required


@pytest.mark.requirement("CORE-RUNNER-07")
def test_an_explicit_policy_wins_over_metadata_and_metadata_over_the_default() -> None:
    policies = {"pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, False)}
    default = ToolEffect.UNCLASSIFIED
    explicit = resolve_tool_policy("pay", ToolEffect.READ, policies, default)
    assert explicit is policies["pay"]
    assert resolve_tool_policy("look", ToolEffect.READ, policies, default) == ToolPolicy(
        ToolEffect.READ
    )
    assert resolve_tool_policy("look", None, policies, default) == ToolPolicy(default)


@pytest.mark.requirement("CORE-EFFECT-08")
def test_an_unknown_effect_name_is_refused_with_the_known_ones() -> None:
    assert ToolPolicy("read").effect is ToolEffect.READ  # pyright: ignore[reportArgumentType] - untyped callers
    with pytest.raises(AgentDefinitionError, match="idempotent_write"):
        ToolPolicy("reed")  # pyright: ignore[reportArgumentType] - on purpose
    with pytest.raises(AgentDefinitionError, match="idempotent_write"):
        AgentSessionOptions(default_tool_effect="reed")  # pyright: ignore[reportArgumentType] - on purpose


@pytest.mark.requirement("CORE-EFFECT-08")
@pytest.mark.parametrize(
    "arguments",
    [
        {"tool_policies": {" ": ToolPolicy(ToolEffect.READ)}},
        {"tool_policies": {"look": "read"}},
        {"agent_events_capacity_bytes": 0},
        {"max_tool_output_bytes": -1},
        {"max_tool_output_bytes": 5_000_000},
        {"message_cache_bytes": 0},
        {"interrupt_deadline": timedelta(0)},
    ],
)
def test_options_that_cannot_work_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(AgentDefinitionError):
        AgentSessionOptions(**arguments)


@pytest.mark.requirement("CORE-EFFECT-08")
@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": timedelta(seconds=1.5)},
        {"heartbeat_timeout": timedelta(0)},
        {"total_duration": timedelta(seconds=-1)},
        {"max_attempts": 0},
    ],
)
def test_limits_that_an_engine_cannot_keep_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(AgentDefinitionError):
        StepLimits(**arguments)


def test_policies_given_as_a_mapping_cannot_change_afterwards() -> None:
    policies = {"look": ToolPolicy(ToolEffect.READ)}
    options = AgentSessionOptions(tool_policies=policies)
    policies.clear()
    assert options.tool_policies == {"look": ToolPolicy(ToolEffect.READ)}


@pytest.mark.requirement("CORE-STEP-15")
def test_a_flow_type_that_an_engine_cannot_carry_is_refused() -> None:
    with pytest.raises(AgentDefinitionError, match="':'"):
        AgentSessionFlow(object(), flow_type="a:b")  # pyright: ignore[reportArgumentType] - refused before
