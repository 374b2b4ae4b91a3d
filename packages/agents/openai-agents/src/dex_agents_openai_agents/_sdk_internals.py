"""Everything this package takes from inside `openai-agents`, written against 0.24.

The rest of the package uses the framework's public names only. Each function here has one test in
`tests/test_sdk_internals.py` that fails when an update of the framework moves what it reads.
"""

# pyright: reportPrivateUsage=false
# Reading private names is the purpose of this module, and of no other.

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    Model,
    ModelBehaviorError,
    RunContextWrapper,
    UserError,
)
from agents.run_state import SUPPORTED_SCHEMA_VERSIONS
from agents.tool import (
    ToolErrorFunction,
    maybe_invoke_function_tool_failure_error_function,
    set_function_tool_failure_error_function,
)
from agents.tool_context import ToolContext
from agents.tracing import TracingConfig, get_trace_provider
from agents.tracing.processors import default_exporter, default_processor
from agents.util._approvals import evaluate_function_tool_approval
from pydantic import TypeAdapter

#: Release line of the framework this module was written against.
SDK_LINE: Final = "0.24"

# Keys of `RunState.to_json()`.
STATE_SCHEMA: Final = "$schemaVersion"
STATE_ORIGINAL_INPUT: Final = "original_input"
STATE_CURRENT_AGENT: Final = "current_agent"
STATE_CURRENT_STEP: Final = "current_step"
STATE_CURRENT_TURN: Final = "current_turn"
STATE_CONTEXT: Final = "context"
STATE_CONTEXT_VALUE: Final = "context"
STATE_CONTEXT_META: Final = "context_meta"
_STATE_TOOL_INVOCATIONS: Final = "tool_invocations"
_STEP_RUN_AGAIN: Final = "next_step_run_again"


def can_read_state(state: Mapping[str, Any]) -> bool:
    """Whether the installed framework reads run states of this schema version."""
    return state.get(STATE_SCHEMA) in SUPPORTED_SCHEMA_VERSIONS


def needs_another_model_call(state: Mapping[str, Any]) -> bool:
    """Whether a stopped run goes on with a model call, instead of having ended."""
    step = cast(Mapping[str, Any] | None, state.get(STATE_CURRENT_STEP))
    return step is not None and step.get("type") == _STEP_RUN_AGAIN


def nested_states(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The states of agents that wait inside a tool call of this state, at any depth."""
    response = cast(Mapping[str, Any], state.get("last_processed_response") or {})
    for run in cast(list[Mapping[str, Any]], response.get("functions") or []):
        nested = run.get("agent_run_state")
        if isinstance(nested, dict):
            nested = cast(dict[str, Any], nested)
            yield nested
            yield from nested_states(nested)


def misses_finished_call(error: UserError) -> bool:
    """Whether a state was refused because it lists a finished call that its items do not have."""
    return error.message.startswith("RunState completed tool invocation does not match")


def without_finished_calls(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state without its list of finished calls; those that still wait stay listed."""
    context = cast(dict[str, Any], state[STATE_CONTEXT])
    listed = cast(dict[str, dict[str, Any]], context[_STATE_TOOL_INVOCATIONS])
    waiting = {call_id: entry for call_id, entry in listed.items() if not entry["completed"]}
    return {**state, STATE_CONTEXT: {**context, _STATE_TOOL_INVOCATIONS: waiting}}


def response_items(state: Mapping[str, Any]) -> list[Any]:
    """The items of the newest response of a state, as the model sent them."""
    response = cast(Mapping[str, Any], state.get("last_processed_response") or {})
    return _raw_items(response.get("new_items"))


def turn_items(state: Mapping[str, Any]) -> list[Any]:
    """All items of a state, in the order of `RunResult.new_items`."""
    return _raw_items(state.get("session_items"))


def _raw_items(written: object) -> list[Any]:
    return [item["raw_item"] for item in cast(list[Mapping[str, Any]], written or [])]


def handoff_target(handoff: Handoff[Any, Any]) -> Agent[Any] | None:
    """The agent a handoff leads to, or `None` for one that was not made with `handoff(agent)`."""
    target = handoff._agent_ref() if handoff._agent_ref is not None else None
    return cast("Agent[Any]", target) if isinstance(target, Agent) else None


def set_handoff_target(handoff: Handoff[Any, Any], target: Agent[Any]) -> None:
    """Point a copied handoff at the copy of its target; the framework holds the target weakly."""
    handoff._agent_ref = weakref.ref(target)


def nested_agent(tool: FunctionTool) -> Agent[Any] | None:
    """The agent inside a tool made by `Agent.as_tool()`, or `None` for any other tool."""
    agent = cast(object, tool._agent_instance) if tool._is_agent_tool else None
    return cast("Agent[Any]", agent) if isinstance(agent, Agent) else None


def output_adapter(tool: FunctionTool) -> TypeAdapter[Any] | None:
    """The adapter of a tool that declares an output type."""
    return tool._output_type_adapter


def without_failure_formatter(tool: FunctionTool) -> FunctionTool:
    """Let a copied tool raise its exceptions instead of turning them into text for the model."""
    return set_function_tool_failure_error_function(tool, None)


def custom_failure_formatter(tool: FunctionTool) -> ToolErrorFunction | None:
    """The formatter the application gave to a tool, or `None` for the default or none at all."""
    if tool._use_default_failure_error_function:
        return None
    return tool._failure_error_function


async def failure_text(
    tool: FunctionTool, context: ToolContext[Any], error: Exception
) -> str | None:
    """What a plain run tells the model about an exception, or `None` where it ends with it."""
    return await maybe_invoke_function_tool_failure_error_function(
        function_tool=tool, context=context, error=error
    )


def unwrap_tool_error(error: Exception, tool_name: str | None = None) -> Exception:
    """Return what a tool's body raised, without the framework's wrapping; other errors as they are.

    Args:
        error: What a run raised.
        tool_name: The tool whose wrapping is taken off; that of any tool by default.
    """
    wrapping = "Error running tool " if tool_name is None else f"Error running tool {tool_name}:"
    is_wrapped = isinstance(error, UserError) and error.message.startswith(wrapping)
    cause = error.__cause__
    return cause if is_wrapped and isinstance(cause, Exception) else error


def says_cut_off(error: ModelBehaviorError) -> bool:
    """Whether a streamed Chat Completions answer ended at the token limit with nothing in it.

    No event of the stream tells it, only this text of the framework.
    """
    return "finish_reason='length'" in error.message


def has_trace_reader(tracing: TracingConfig | None) -> bool:
    """Whether anything would take the spans of a run with this configuration.

    Nothing does where only the framework's own exporter is set up and has no key: it sends nothing,
    and warns about that every few seconds.
    """
    processors = getattr(getattr(get_trace_provider(), "_multi_processor", None), "_processors", ())
    if tuple(processors) != (default_processor(),):
        return True
    return bool((tracing or {}).get("api_key") or default_exporter().api_key)


async def clean_up_model(model: Model, owner: object) -> None:
    """Tell a wrapped model that a run has ended."""
    await model._cleanup_on_run_end(owner)


async def needs_approval(
    tool: FunctionTool, context: RunContextWrapper[Any], arguments: str, call_id: str
) -> bool:
    """Ask the tool's own `needs_approval` rule, exactly as a plain run does."""
    decision = await evaluate_function_tool_approval(tool, context, arguments, call_id)
    return decision.outcome == "require_approval"
