"""The contract between the session and an agent framework.

An adapter implements `AgentFrameworkRunner`. The session calls it from durable Steps, so every
call may run again after a crash: a runner keeps nothing between calls and derives everything from
its arguments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from dex_agents.errors import AgentDefinitionError
from dex_agents.events import AgentEventWriter
from dex_agents.values import (
    AgentMessage,
    AgentToolCall,
    AgentUsage,
    MessageRole,
    ToolCallStatus,
    ToolEffect,
)

__all__ = [
    "AgentFrameworkRunner",
    "AgentTurnContext",
    "AgentTurnOutcome",
    "DeferredToolCall",
    "DeferredToolExecution",
    "FrameworkMessage",
    "ToolCallsRequested",
    "ToolEffect",
    "ToolExecutionResult",
    "ToolPolicy",
    "TurnCompleted",
    "TurnContinues",
    "build_turn_failure_note",
    "describe_tool_call_outcome",
    "resolve_tool_policy",
]


@dataclass(frozen=True)
class ToolPolicy:
    """How the session treats the calls of one tool.

    Attributes:
        effect: What a call does to the world; decides retries and crash behaviour.
        requires_approval: Whether a person must approve each call, or `None` for the effect's
            default (see `ToolEffect.requires_approval_by_default`).
    """

    effect: ToolEffect
    requires_approval: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.effect, ToolEffect):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types pass text
            try:
                object.__setattr__(self, "effect", ToolEffect(self.effect))
            except ValueError:
                choices = ", ".join(effect.value for effect in ToolEffect)
                raise AgentDefinitionError(
                    f"unknown tool effect {self.effect!r}; use one of: {choices}"
                ) from None

    @property
    def is_approval_required(self) -> bool:
        """Whether a call waits for a person before it runs."""
        if self.requires_approval is None:
            return self.effect.requires_approval_by_default
        return self.requires_approval


def resolve_tool_policy(
    tool_name: str,
    framework_effect: ToolEffect | None,
    tool_policies: Mapping[str, ToolPolicy],
    default_tool_effect: ToolEffect,
) -> ToolPolicy:
    """Choose the policy of a tool: the explicit one, else the framework's hint, else the default.

    Args:
        tool_name: Name of the tool.
        framework_effect: What the framework's own metadata says about the tool, if anything.
        tool_policies: Explicit policies by tool name.
        default_tool_effect: Effect of a tool that has neither.
    """
    explicit = tool_policies.get(tool_name)
    if explicit is not None:
        return explicit
    return ToolPolicy(default_tool_effect if framework_effect is None else framework_effect)


@dataclass(frozen=True)
class FrameworkMessage:
    """One item for the session's history.

    Attributes:
        role: Who it comes from.
        framework_item: The framework's own form of the item, as JSON text. Given back unchanged in
            `AgentMessage.framework_item`.
        text: Readable text; empty for items without any.
        agent_name: Agent that produced the item, when the framework names one.
    """

    role: MessageRole
    framework_item: str
    text: str = ""
    agent_name: str = ""


@dataclass(frozen=True)
class DeferredToolCall:
    """A tool call the model asked for, to be run by the session.

    Attributes:
        tool_call_id: Id given by the model: not blank, without `/`, unique within the turn.
        tool_name: Name of the tool.
        arguments: Arguments as the model wrote them, normally JSON text.
        policy: From `AgentTurnContext.resolve_tool_policy`.
        requires_approval: The framework's own approval rule for this very call. `True` asks a
            person even where the policy does not; `False` or `None` leaves it to the policy, so
            that a framework cannot lift a protection the application asked for.
        framework_payload: Data the adapter wants back with the record, as JSON text.
    """

    tool_call_id: str
    tool_name: str
    arguments: str
    policy: ToolPolicy
    requires_approval: bool | None = None
    framework_payload: str | None = None

    @property
    def is_approval_required(self) -> bool:
        """Whether this call waits for a person before it runs."""
        return self.policy.is_approval_required or self.requires_approval is True


@dataclass(frozen=True)
class TurnCompleted:
    """The model gave the final answer of the turn.

    Attributes:
        new_messages: Every item of the turn after its user message, in order, over all of its
            model calls. Stored in one commit.
        usage: Usage of this model call only.
    """

    new_messages: tuple[FrameworkMessage, ...]
    usage: AgentUsage = field(default_factory=AgentUsage)

    def __post_init__(self) -> None:
        object.__setattr__(self, "new_messages", tuple(self.new_messages))


@dataclass(frozen=True)
class ToolCallsRequested:
    """The model asked for tools.

    Attributes:
        framework_run_state: What the runner needs to continue the turn after the tools; not empty.
            It travels with every task of the session, so keep it small and without the history.
        tool_calls: The calls, in model order; at least one.
        usage: Usage of this model call only.
    """

    framework_run_state: str
    tool_calls: tuple[DeferredToolCall, ...]
    usage: AgentUsage = field(default_factory=AgentUsage)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))


@dataclass(frozen=True)
class TurnContinues:
    """The turn needs another model call and no tool: after a handoff, or an unknown tool.

    Attributes:
        framework_run_state: What the runner needs to continue the turn; not empty.
        usage: Usage of this model call only.
    """

    framework_run_state: str
    usage: AgentUsage = field(default_factory=AgentUsage)


AgentTurnOutcome: TypeAlias = TurnCompleted | ToolCallsRequested | TurnContinues


@dataclass(frozen=True)
class ToolExecutionResult:
    """What a tool returned.

    Attributes:
        output: Text for the model.
        framework_payload: Data the adapter wants back in the record, as JSON text, for example a
            structured output. Replaces the payload of the deferred call unless `None`.
        usage: Model usage inside the tool, for example of a nested agent.
    """

    output: str
    framework_payload: str | None = None
    usage: AgentUsage | None = None


@dataclass(frozen=True)
class AgentTurnContext:
    """What one model Step knows: committed state only, the same on every attempt.

    Attributes:
        flow_id: Session id.
        turn_id: `turn-<n>`.
        attempt: Attempt of this Step, from 1.
        messages: Every stored message in order. The last user message belongs to this turn.
        framework_run_state: `None` for the first model call of the turn, else the value of this
            turn's last outcome.
        tool_calls: Records of this turn by tool call id; all are final.
        events: Writer of live events.
        heartbeat: Tells the engine that the Step is alive. The session does so every 20 seconds.
        tool_policies: Explicit policies by tool name.
        default_tool_effect: Effect of a tool that has neither a policy nor a hint.
    """

    flow_id: str
    turn_id: str
    attempt: int
    messages: tuple[AgentMessage, ...]
    framework_run_state: str | None
    tool_calls: Mapping[str, AgentToolCall]
    events: AgentEventWriter
    heartbeat: Callable[[], Awaitable[None]]
    tool_policies: Mapping[str, ToolPolicy] = field(default_factory=dict[str, ToolPolicy])
    default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED

    @property
    def is_resuming(self) -> bool:
        """Whether this turn has made a model call before."""
        return self.framework_run_state is not None

    def recorded_tool_call(self, tool_call_id: str) -> AgentToolCall | None:
        """Return the final record of a call of this turn, or `None` if it was never deferred."""
        return self.tool_calls.get(tool_call_id)

    def resolve_tool_policy(
        self, tool_name: str, framework_effect: ToolEffect | None = None
    ) -> ToolPolicy:
        """Choose the policy of a tool.

        Args:
            tool_name: Name of the tool.
            framework_effect: What the framework's own metadata says about the tool, if anything.
        """
        return resolve_tool_policy(
            tool_name, framework_effect, self.tool_policies, self.default_tool_effect
        )


@dataclass(frozen=True)
class DeferredToolExecution:
    """One attempt to run one tool call.

    Attributes:
        flow_id: Session id.
        tool_call: Record of the call; approved where approval was required.
        idempotency_key: `<flow id>/<turn id>/<tool call id>`, the same on every attempt.
        attempt: Attempt of this Step, from 1.
        events: Writer of live events.
        heartbeat: Tells the engine that the Step is alive. The session does so every 20 seconds.
    """

    flow_id: str
    tool_call: AgentToolCall
    idempotency_key: str
    attempt: int
    events: AgentEventWriter
    heartbeat: Callable[[], Awaitable[None]]


@runtime_checkable
class AgentFrameworkRunner(Protocol):
    """What an adapter implements for one agent."""

    def build_user_message(self, text: str) -> FrameworkMessage:
        """Return the framework's form of a user message, with role `MessageRole.USER`.

        Called for what the user wrote and for the note about a failed turn.
        """
        ...

    async def run_model_step(self, turn: AgentTurnContext) -> AgentTurnOutcome:
        """Make at most one model call and stop before any tool runs.

        Raises:
            TurnFailedError: The turn cannot succeed; it fails without another attempt.
            ModelError: Another attempt may help, with an optional wait before it.
            Exception: Anything else fails the attempt and is retried.
        """
        ...

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Run one tool call once. Calls of one model response run at the same time.

        Raises:
            ToolExecutionError: The call failed and the model should read why; not retried.
            Exception: Anything else fails the attempt, which is retried for a `read` or an
                `idempotent_write` and leaves the outcome unknown otherwise.
        """
        ...


_REJECTED = "The user did not approve this tool call, so it was not run."
_UNKNOWN = (
    "It is not known whether this tool call took effect: it was interrupted while it ran. "
    "Check before you repeat it."
)


def describe_tool_call_outcome(record: AgentToolCall) -> str:
    """Return the text a model reads as the result of a tool call.

    Args:
        record: A record with a final status.

    Raises:
        ValueError: The record is not final, so there is nothing to tell yet.
    """
    match record.status:
        case ToolCallStatus.SUCCEEDED:
            return record.output or ""
        case ToolCallStatus.FAILED:
            return f"The tool call failed: {record.error or 'no reason was given'}"
        case ToolCallStatus.REJECTED:
            return (
                f"{_REJECTED} {record.rejection_message}" if record.rejection_message else _REJECTED
            )
        case ToolCallStatus.OUTCOME_UNKNOWN:
            return f"{_UNKNOWN} ({record.error})" if record.error else _UNKNOWN
        case _:
            raise ValueError(
                f"tool call {record.tool_call_id!r} is {record.status}; "
                "only a final call has an outcome"
            )


def build_turn_failure_note(records: Iterable[AgentToolCall]) -> str:
    """Return the note that a failed turn leaves for the next turn's model.

    Args:
        records: Final records of the failed turn, in any order.
    """
    lines = ["[Dex] The previous turn failed after these tool calls ran:"]
    lines.extend(
        f"- {record.tool_name} {record.arguments} -> {record.status}: "
        f"{describe_tool_call_outcome(record)}"
        for record in sorted(records, key=lambda record: record.deferral_order)
    )
    lines.append("Do not repeat these tool calls unless the user asks again.")
    return "\n".join(lines)
