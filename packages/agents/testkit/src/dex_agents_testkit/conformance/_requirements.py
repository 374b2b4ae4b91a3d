"""What a runner must do, as data: one entry per rule, each a sentence that can be false."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Ability(StrEnum):
    """What an adapter can do beyond the minimum, as its author declares it.

    Requirements that need an ability the adapter does not declare are skipped, and shown as such.
    """

    MODEL_INPUT = "model_input"
    """The model double tells the stage what it was given."""
    STREAMING = "streaming"
    """Answer text is written as live events."""
    USAGE = "usage"
    """Token counts of a model call are reported."""
    PARALLEL_CALLS = "parallel_calls"
    """One model response may ask for several tools."""
    CONTINUES = "continues"
    """A turn may need another model call without a tool, as after a handoff."""
    APPROVALS = "approvals"
    """The framework has an approval rule of its own for tools."""
    EFFECT_HINTS = "effect_hints"
    """The framework's tools say themselves whether they only read."""
    ANY_CALL_ID = "any_call_id"
    """The model chooses tool call ids, so they may hold any character."""
    FINAL_FAILURES = "final_failures"
    """The adapter tells failures apart that no attempt can cure."""
    RETRY_AFTER = "retry_after"
    """The adapter passes on how long a provider asks to wait."""
    STRUCTURED_OUTPUTS = "structured_outputs"
    """A tool may return an output of several parts, which the model reads as such."""
    IDEMPOTENCY_KEY = "idempotency_key"
    """A tool can read the idempotency key of its call."""


class Level(StrEnum):
    """How a requirement is checked: by calling the runner, or in a session on a real engine."""

    RUNNER = "runner"
    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One rule.

    Attributes:
        requirement_id: Stable name, `area.what`.
        rule: The rule, as a sentence that can be false.
        source: Where the contract says so: a dotted name of `dex_agents`.
        abilities: What the adapter must declare for the rule to apply.
        level: How it is checked.
        unbreakable_because: Why no runner can fail this rule alone, where that is so.
    """

    requirement_id: str
    rule: str
    source: str
    abilities: frozenset[Ability] = frozenset()
    level: Level = Level.RUNNER
    unbreakable_because: str | None = None


def _rule(requirement_id: str, source: str, rule: str, *abilities: Ability) -> Requirement:
    return Requirement(
        requirement_id=requirement_id,
        rule=rule,
        source=f"dex_agents.{source}",
        abilities=frozenset(abilities),
    )


def _session_rule(
    requirement_id: str, source: str, rule: str, unbreakable_because: str | None = None
) -> Requirement:
    return Requirement(
        requirement_id=requirement_id,
        rule=rule,
        source=f"dex_agents.{source}",
        level=Level.SESSION,
        unbreakable_because=unbreakable_because,
    )


_BUILD = "AgentFrameworkRunner.build_user_message"
_MODEL = "AgentFrameworkRunner.run_model_step"
_TOOL = "AgentFrameworkRunner.execute_deferred_tool_call"
_ITEMS = "TurnCompleted.new_messages"

REQUIREMENTS: Final[tuple[Requirement, ...]] = (
    # --- the user's message ---
    _rule("user_message.role", _BUILD, "A user message has the role user."),
    _rule("user_message.text", _BUILD, "The readable text of a user message is what was said."),
    _rule(
        "user_message.reaches_model",
        _BUILD,
        "The model reads what the user said, letter by letter.",
        Ability.MODEL_INPUT,
    ),
    # --- one model Step ---
    _rule(
        "model.outcome",
        "AgentTurnOutcome",
        "A model Step returns TurnCompleted, ToolCallsRequested or TurnContinues.",
    ),
    _rule("model.one_call", _MODEL, "A model Step makes at most one model call."),
    _rule("model.no_tool_run", _MODEL, "No tool runs inside a model Step."),
    _rule(
        "model.repeatable",
        "AgentTurnContext",
        "The same turn context and the same model answer give the same outcome on every attempt.",
    ),
    _rule("model.cancel", _MODEL, "A cancelled model Step ends as cancelled."),
    # --- what the model is given ---
    _rule(
        "history.reaches_model",
        "AgentTurnContext.messages",
        "The model reads what was said in earlier turns, in order.",
        Ability.MODEL_INPUT,
    ),
    _rule(
        "history.no_repeats",
        "AgentTurnContext.messages",
        "The model reads nothing twice, neither of earlier turns nor of this one.",
        Ability.MODEL_INPUT,
    ),
    _rule(
        "results.succeeded",
        "describe_tool_call_outcome",
        "The model reads the output of a tool call that succeeded.",
        Ability.MODEL_INPUT,
    ),
    _rule(
        "results.structured",
        "ToolExecutionResult.framework_payload",
        "The model reads an output of several parts as these parts.",
        Ability.MODEL_INPUT,
        Ability.STRUCTURED_OUTPUTS,
    ),
    _rule(
        "results.failed",
        "describe_tool_call_outcome",
        "The model reads why a tool call failed.",
        Ability.MODEL_INPUT,
    ),
    _rule(
        "results.rejected",
        "describe_tool_call_outcome",
        "The model reads the words with which a person rejected a tool call.",
        Ability.MODEL_INPUT,
    ),
    _rule(
        "results.outcome_unknown",
        "describe_tool_call_outcome",
        "The model reads what is known of a tool call whose outcome is unknown.",
        Ability.MODEL_INPUT,
    ),
    # --- the run state ---
    _rule(
        "state.not_empty",
        "ToolCallsRequested.framework_run_state",
        "The run state of a turn that goes on is text and not empty.",
    ),
    _rule(
        "state.elsewhere",
        "ToolCallsRequested.framework_run_state",
        "Another instance of the runner continues a turn from its run state.",
    ),
    _rule(
        "state.small",
        "ToolCallsRequested.framework_run_state",
        "The run state does not hold the messages of earlier turns.",
    ),
    _rule(
        "state.continues",
        "TurnContinues",
        "After a handoff the turn goes on in another model Step, without a tool call.",
        Ability.CONTINUES,
    ),
    # --- tool calls that are asked for ---
    _rule(
        "tools.arguments",
        "DeferredToolCall.arguments",
        "A deferred call has the tool name and the arguments that the model wrote.",
    ),
    _rule(
        "tools.order",
        "ToolCallsRequested.tool_calls",
        "The calls of one response are deferred once each, in model order.",
        Ability.PARALLEL_CALLS,
    ),
    _rule(
        "tools.ids",
        "DeferredToolCall.tool_call_id",
        "Tool call ids are not blank, hold no `/`, and are unique within the turn.",
    ),
    _rule(
        "tools.ids.foreign",
        "DeferredToolCall.tool_call_id",
        "A tool call whose id the session cannot hold is deferred under one that it can.",
        Ability.ANY_CALL_ID,
    ),
    _rule(
        "tools.ids.next_turn",
        "DeferredToolCall.tool_call_id",
        "A tool call id that comes again in a later turn gets the result of that turn.",
        Ability.MODEL_INPUT,
    ),
    _rule(
        "tools.policy",
        "DeferredToolCall.policy",
        "The policy of a deferred call is what the turn context resolves for its tool.",
    ),
    _rule(
        "tools.effect_hint",
        "AgentTurnContext.resolve_tool_policy",
        "What a tool says about its own effect decides where no policy is given.",
        Ability.EFFECT_HINTS,
    ),
    _rule(
        "tools.framework_approval",
        "DeferredToolCall.requires_approval",
        "A call that the framework's own rule wants approved is deferred as such.",
        Ability.APPROVALS,
    ),
    # --- what a turn leaves behind ---
    _rule("items.json", "FrameworkMessage.framework_item", "Every framework item is JSON text."),
    _rule(
        "items.complete",
        _ITEMS,
        "The new messages hold every text, tool request and tool result of the turn.",
    ),
    _rule("items.no_repeats", _ITEMS, "The new messages hold no item twice."),
    _rule("items.order", _ITEMS, "The new messages are in the order in which they came about."),
    _rule("items.after_user_message", _ITEMS, "The new messages do not repeat the user's message."),
    _rule(
        "items.answer_text",
        "FrameworkMessage.text",
        "The final answer is a message of the assistant with readable text.",
    ),
    # --- usage and events ---
    _rule(
        "usage.this_call",
        "TurnCompleted.usage",
        "The usage is that of this model call, and of no other.",
        Ability.USAGE,
    ),
    _rule(
        "events.text",
        "AgentEventWriter.write_text_delta",
        "When a model Step returns, the streamed text is the text of the model, once.",
        Ability.STREAMING,
    ),
    # --- failures of the model ---
    _rule("failures.raised", _MODEL, "A model call that failed fails the attempt."),
    _rule(
        "failures.repeatable",
        "TurnFailedError",
        "A failure that another attempt may cure does not end the turn.",
    ),
    _rule(
        "failures.final",
        "TurnFailedError",
        "A failure that no attempt can cure raises TurnFailedError.",
        Ability.FINAL_FAILURES,
    ),
    _rule(
        "failures.retry_after",
        "ModelError",
        "The wait that a provider asks for is the retry_after of a ModelError.",
        Ability.RETRY_AFTER,
    ),
    _rule(
        "failures.next_attempt",
        "AgentTurnContext.attempt",
        "The attempt after a failed one starts afresh and may succeed.",
    ),
    # --- one tool Step ---
    _rule("tool_step.runs_once", _TOOL, "A tool Step runs the tool once, with the arguments."),
    _rule("tool_step.no_model_call", _TOOL, "A tool Step does not ask the model again."),
    _rule(
        "tool_step.output",
        "ToolExecutionResult.output",
        "The output of a tool Step is the text that the tool returned.",
    ),
    _rule(
        "tool_step.error_for_model",
        "ToolExecutionError",
        "A ToolExecutionError of a tool comes out as one, with its message.",
    ),
    _rule(
        "tool_step.other_error",
        _TOOL,
        "Any other exception of a tool fails the attempt and is no ToolExecutionError.",
    ),
    _rule(
        "tool_step.concurrent",
        _TOOL,
        "Tool Steps that run at the same time do not mix.",
        Ability.PARALLEL_CALLS,
    ),
    _rule(
        "tool_step.idempotency_key",
        "DeferredToolExecution.idempotency_key",
        "A tool can read the idempotency key of its call.",
        Ability.IDEMPOTENCY_KEY,
    ),
    # --- in a session on an engine ---
    _session_rule(
        "session.turn",
        "AgentSessionFlow",
        "A session stores what the runner returns and brings a turn with tools to its end.",
    ),
    _session_rule(
        "session.approval",
        "AgentSessionFlow",
        "A rejected call does not run, an approved one runs once, and both turns end.",
        "The session holds the call back; a runner that runs it by itself fails model.no_tool_run.",
    ),
    _session_rule(
        "session.restart",
        "AgentSessionFlow",
        "A turn that waits for a person goes on in another worker without repeating a call.",
        "All that a new worker takes from a runner is its instance, as state.elsewhere does first.",
    ),
)
