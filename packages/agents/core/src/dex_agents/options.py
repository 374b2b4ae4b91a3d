"""Options of a session Flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from dex_agents.errors import AgentDefinitionError
from dex_agents.runner import ToolPolicy
from dex_agents.values import ToolEffect

#: Default capacity of the `AgentEvents` Stream, shared by all sessions of one Flow type.
DEFAULT_EVENTS_CAPACITY_BYTES: Final = 10 * 1024 * 1024
#: Default limit of one tool output as stored.
DEFAULT_MAX_TOOL_OUTPUT_BYTES: Final = 512 * 1024
#: Highest limit of one tool output: several must fit into one message of the engine.
MAX_TOOL_OUTPUT_BYTES: Final = 1_000_000
#: Bytes of one user message at most.
MAX_USER_MESSAGE_BYTES: Final = 500_000
#: Default bound of the decoded messages one worker keeps per Flow, measured as stored.
DEFAULT_MESSAGE_CACHE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class StepLimits:
    """How long and how often a model call or a repeatable tool call may try.

    Attributes:
        timeout: Most time for one attempt, in whole seconds.
        heartbeat_timeout: An attempt that gives no sign of life for this long counts as lost.
        max_attempts: Most attempts, the first included.
        total_duration: Most time over all attempts, waits included.
    """

    timeout: timedelta = timedelta(minutes=15)
    heartbeat_timeout: timedelta = timedelta(minutes=2)
    max_attempts: int = 3
    total_duration: timedelta = timedelta(minutes=30)

    def __post_init__(self) -> None:
        for name in ("timeout", "heartbeat_timeout", "total_duration"):
            require_whole_seconds(name, getattr(self, name))
        if self.max_attempts < 1:
            raise AgentDefinitionError(
                f"max_attempts must be at least 1, not {self.max_attempts}; 1 means no retry"
            )


@dataclass(frozen=True)
class AgentSessionOptions:
    """How the sessions of one Flow behave.

    Attributes:
        tool_policies: Policies by tool name. A tool without one is treated by the framework's own
            metadata, else by `default_tool_effect`.
        default_tool_effect: Effect of a tool that nothing else is known about.
        agent_events_capacity_bytes: Capacity of the `AgentEvents` Stream. All sessions of the Flow
            type share it, so size it by the number of sessions that stream at the same time.
        interrupt_deadline: Time after which an unanswered approval counts as rejected, or `None`
            to wait for ever. Measured by the worker's clock.
        model_limits: Limits of one model call.
        tool_limits: Limits of one tool call. A call that may run only once takes the times and
            ignores `max_attempts`.
        max_tool_output_bytes: A longer output, measured as stored, becomes a failure that names
            the tool and the size.
        message_cache_bytes: Bound of the decoded messages a worker keeps for this Flow, measured
            as stored. A session that is being loaded may exceed it.
    """

    tool_policies: Mapping[str, ToolPolicy] = field(default_factory=dict[str, ToolPolicy])
    default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED
    agent_events_capacity_bytes: int = DEFAULT_EVENTS_CAPACITY_BYTES
    interrupt_deadline: timedelta | None = None
    model_limits: StepLimits = field(default_factory=StepLimits)
    tool_limits: StepLimits = field(default_factory=StepLimits)
    max_tool_output_bytes: int = DEFAULT_MAX_TOOL_OUTPUT_BYTES
    message_cache_bytes: int = DEFAULT_MESSAGE_CACHE_BYTES

    def __post_init__(self) -> None:
        policies = dict(self.tool_policies)
        for name, policy in policies.items():
            if not name.strip():
                raise AgentDefinitionError("a tool policy needs the name of a tool, not blank text")
            if not isinstance(policy, ToolPolicy):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
                raise AgentDefinitionError(
                    f"the policy of tool {name!r} must be a ToolPolicy, not {policy!r}"
                )
        object.__setattr__(self, "tool_policies", MappingProxyType(policies))
        try:
            object.__setattr__(self, "default_tool_effect", ToolEffect(self.default_tool_effect))
        except ValueError:
            choices = ", ".join(effect.value for effect in ToolEffect)
            raise AgentDefinitionError(
                f"unknown default_tool_effect {self.default_tool_effect!r}; use one of: {choices}"
            ) from None
        for name in (
            "agent_events_capacity_bytes",
            "max_tool_output_bytes",
            "message_cache_bytes",
        ):
            if getattr(self, name) <= 0:
                raise AgentDefinitionError(f"{name} must be positive")
        if self.max_tool_output_bytes > MAX_TOOL_OUTPUT_BYTES:
            raise AgentDefinitionError(
                f"max_tool_output_bytes must be at most {MAX_TOOL_OUTPUT_BYTES}, "
                f"not {self.max_tool_output_bytes}; engines refuse larger messages"
            )
        if self.interrupt_deadline is not None and self.interrupt_deadline <= timedelta(0):
            raise AgentDefinitionError("interrupt_deadline must be positive, or None for never")


def require_whole_seconds(name: str, duration: timedelta) -> None:
    """Refuse a duration the engine cannot keep.

    Raises:
        AgentDefinitionError: The duration is not a positive number of whole seconds.
    """
    seconds = duration.total_seconds()
    if seconds <= 0 or not seconds.is_integer():
        raise AgentDefinitionError(f"{name} must be a positive number of whole seconds")
