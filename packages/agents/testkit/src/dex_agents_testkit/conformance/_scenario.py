"""What happens in a check, in words that belong to no framework.

A scenario is what the model answers and what the tools do. An adapter's test turns it into doubles
of its framework: a model that asks the stage for its answers, and tools that run on the stage.
"""

from __future__ import annotations

import json
import string
from dataclasses import dataclass, field

from dex_agents.values import AgentUsage, ToolEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailure:
    """How a model call fails. The double raises what its framework would raise.

    Attributes:
        message: What the provider says.
        is_final: No attempt can help, as with a request that the provider refuses (status 400).
            Otherwise the provider is overloaded for a moment (status 429 or 503).
        retry_after: Seconds the provider asks to wait.
        attempts: How many first attempts fail.
    """

    message: str
    is_final: bool = False
    retry_after: int | None = None
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToolCall:
    """A tool call the model asks for.

    Attributes:
        tool_call_id: Id that the model gives it.
        tool_name: One of the scenario's tools.
        key: Value of the one argument, `key`.
    """

    tool_call_id: str
    tool_name: str
    key: str

    @property
    def arguments(self) -> str:
        """The arguments as the model writes them, JSON text."""
        return json.dumps({"key": self.key})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """One answer of the model.

    With neither `tool_calls` nor `hands_over` it is the final answer of the turn.

    Attributes:
        text: What the model says; may be empty next to tool calls or a handoff.
        tool_calls: Tools it asks for.
        hands_over: The model hands over to another agent that has the same model and tools.
        failure: The call fails like this instead.
        usage: Tokens the provider reports.
        never_answers: The call lasts until it is cancelled.
    """

    text: str = ""
    tool_calls: tuple[ModelToolCall, ...] = ()
    hands_over: bool = False
    failure: ModelFailure | None = None
    usage: AgentUsage = field(
        default_factory=lambda: AgentUsage(
            model_calls=1, input_tokens=10, output_tokens=5, total_tokens=15
        )
    )
    never_answers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTool:
    """A tool. It takes one argument, the text `key`, and runs by `Stage.run_tool`.

    Attributes:
        name: Its name.
        output: Text it returns; `$key` stands for the argument.
        parts: Texts that it returns as separate parts of one structured output instead
            (`Ability.STRUCTURED_OUTPUTS`).
        error: Text of the `ToolExecutionError` it raises instead.
        exception: Text of the `RuntimeError` it raises instead.
        needs_approval: The framework's own rule wants every call approved (`Ability.APPROVALS`).
        effect_hint: What the tool says about itself (`Ability.EFFECT_HINTS`).
    """

    name: str
    output: str = "done"
    parts: tuple[str, ...] = ()
    error: str | None = None
    exception: str | None = None
    needs_approval: bool = False
    effect_hint: ToolEffect | None = None

    def output_for(self, key: str) -> str:
        """Return what the tool returns for an argument."""
        return string.Template(self.output).substitute(key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What the model says and what the tools do.

    Attributes:
        turns: The replies of each turn, one per model call.
        tools: Every tool the agent has.
    """

    turns: tuple[tuple[ModelReply, ...], ...]
    tools: tuple[ScenarioTool, ...] = ()

    def tool(self, name: str) -> ScenarioTool:
        """Return a tool by name.

        Raises:
            KeyError: There is none of this name.
        """
        for tool in self.tools:
            if tool.name == name:
                return tool
        raise KeyError(f"the scenario has no tool {name!r}")
