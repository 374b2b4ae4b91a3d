"""One tool Step: the framework carries out one recorded call, with everything that belongs to it.

The run has a model that repeats the recorded call and ends at its result, so guardrails, argument
checks, timeouts, threads for sync tools and structured outputs are those of a plain run.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import AsyncIterator
from typing import Any, cast

from agents import (
    Agent,
    AgentHooks,
    FunctionTool,
    Model,
    ModelResponse,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunResult,
    Tool,
    ToolCallOutputItem,
    ToolOutputGuardrailTripwireTriggered,
    Usage,
)
from agents.tool_context import ToolContext
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from dex_agents import (
    DeferredToolExecution,
    ToolExecutionError,
    ToolExecutionResult,
)
from dex_agents_openai_agents import _sdk_internals as sdk
from dex_agents_openai_agents._graph.graph import AgentGraph, GraphAgent
from dex_agents_openai_agents._steps.current_call import running_call
from dex_agents_openai_agents._steps.runner_settings import RunnerSettings
from dex_agents_openai_agents._steps.tool_failures import FailedCall
from dex_agents_openai_agents._steps.usage import UsageMark, usage_since
from dex_agents_openai_agents._stored.call_ids import to_model_call_id
from dex_agents_openai_agents._stored.tool_results import CallOrigin, withheld_result
from dex_agents_openai_agents._tools import ToolKind, hosted_mcp, kind_of
from dex_agents_openai_agents._tools.gate_scope import StepTool
from dex_agents_openai_agents._tools.recipe import recipe_of


class ToolStep:
    """One attempt of one tool Step.

    Args:
        settings: Of the runner.
        graph: Of the runner.
        execution: From the session.
    """

    def __init__(
        self, settings: RunnerSettings, graph: AgentGraph, execution: DeferredToolExecution
    ) -> None:
        self._settings = settings
        self._graph = graph
        self._execution = execution
        self._record = execution.tool_call

    async def run(self) -> ToolExecutionResult:
        """Run the tool once.

        Raises:
            ToolExecutionError: The call is over and failed; the model reads why.
            Exception: What the tool raised.
        """
        record = self._record
        origin, owner = self._find_owner()
        if hosted_mcp.server_of(origin) is not None:
            return hosted_mcp.step_result()
        context = await self._settings.context.build(self._execution.flow_id, record.turn_id)
        kind, tool = await self._find_tool(owner, context)
        if recipe_of(tool) is not None:
            return ToolExecutionResult("Started; its own calls follow.")
        turn_config = self._settings.turn_run_config(self._execution.flow_id, record.turn_id)
        run_hooks = self._settings.hooks if owner.recipe is None else owner.recipe.hooks
        hooks = _ToolHooks(owner.original, run_hooks, tool, turn_config)
        is_nested = isinstance(tool, FunctionTool) and sdk.nested_agent(tool) is not None
        raised: list[Exception] = []
        try:
            with running_call(None if is_nested else self._execution):
                probe = self._probe(origin, owner, kind, tool, kind.body(tool, raised))
                probe.hooks = hooks
                result = await Runner.run(
                    probe,
                    "",
                    context=context,
                    run_config=self._settings.tool_run_config(
                        self._execution.flow_id, record.turn_id
                    ),
                    max_turns=kind.max_turns,
                )
            if raised:
                raise raised[-1]
        except Exception as error:
            if isinstance(error, ToolOutputGuardrailTripwireTriggered) and not is_nested:
                # The body ran; only its output is refused. The next model Step fails the turn.
                return withheld_result(origin, error.guardrail.get_name())
            failed = FailedCall(
                origin=origin,
                tool=tool,
                effect=record.effect,
                is_last_attempt=self._execution.attempt >= self._settings.tool_attempts,
                context=context,
                tool_context=hooks.tool_context,
            )
            outcome = await failed.outcome(error)
            if failed.told is not None:
                await hooks.failed(failed.told)
            raise outcome from error
        return self._recorded(origin, owner, kind, tool, result)

    def _find_owner(self) -> tuple[CallOrigin, GraphAgent]:
        record = self._record
        origin = CallOrigin.of(record)
        if origin is None:
            raise ToolExecutionError(
                f"Tool {record.tool_name} was not run: its record cannot be read."
            )
        owner = self._graph.agents.get(origin.agent_name)
        if owner is None:
            raise ToolExecutionError(
                f"Tool {record.tool_name} was not run: agent {origin.agent_name!r} is no longer "
                "part of this application."
            )
        return origin, owner

    async def _find_tool(
        self, owner: GraphAgent, context: object
    ) -> tuple[ToolKind[Any], StepTool]:
        name = self._record.tool_name
        tools: list[Any] = [owner.tools[name]] if name in owner.tools else []
        if not tools and owner.lists_tools_at_run_time:
            tools = list(await owner.original.get_all_tools(RunContextWrapper(context)))
        for tool in tools:
            kind = kind_of(tool)
            if kind is not None and kind.policy_name(tool) == name:
                return kind, tool
        raise ToolExecutionError(
            f"Tool {name} was not run: it is no longer a tool of agent {owner.original.name!r}."
        )

    def _probe(
        self,
        origin: CallOrigin,
        owner: GraphAgent,
        kind: ToolKind[Any],
        tool: StepTool,
        body: Tool,
    ) -> Agent[Any]:
        """Return an agent that makes the recorded call and can do nothing else."""
        record = self._record
        if getattr(tool, "defer_loading", False):
            # Such a call names a namespace that the provider made up.
            origin = dataclasses.replace(origin, namespace=None)
        call_id = to_model_call_id(record.tool_call_id)
        probe = copy.copy(owner.original)
        probe.tools = [body]
        probe.handoffs = []
        probe.mcp_servers = []
        probe.input_guardrails = []
        probe.output_guardrails = []
        probe.instructions = None
        probe.prompt = None
        probe.output_type = None
        probe.model = _RecordedCall(kind.replay(call_id, origin, record.arguments))
        probe.model_settings = ModelSettings()
        probe.tool_use_behavior = "stop_on_first_tool"
        return _without_own_tool_list(probe)

    def _recorded(
        self,
        origin: CallOrigin,
        owner: GraphAgent,
        kind: ToolKind[Any],
        tool: StepTool,
        result: RunResult,
    ) -> ToolExecutionResult:
        if result.interruptions:
            raise ToolExecutionError(
                f"Tool {self._record.tool_name} stopped: something inside it waits for an "
                "approval, which a tool cannot ask for."
            )
        item = next(item for item in result.new_items if isinstance(item, ToolCallOutputItem))
        if _rejected(result.tool_input_guardrail_results):
            text = str(item.output)
            raise ToolExecutionError(text, framework_payload=origin.encode(told=text))
        recorded = kind.result(
            origin,
            owner.original,
            tool,
            item,
            is_replaced=_rejected(result.tool_output_guardrail_results),
        )
        usage = usage_since(UsageMark(), result.context_wrapper.usage)
        return ToolExecutionResult(
            recorded.output,
            recorded.framework_payload,
            usage if usage.model_calls or usage.total_tokens else None,
        )


def _without_own_tool_list(probe: Agent[Any]) -> Agent[Any]:
    """Make sure that the run sees the one tool, also for an agent that lists its tools itself."""
    if type(probe).get_all_tools is not Agent.get_all_tools:
        base = type(probe)
        probe.__class__ = type(base.__name__, (base,), {"get_all_tools": Agent.get_all_tools})
    return probe


def _tool_context(context: object) -> ToolContext[Any] | None:
    return cast("ToolContext[Any]", context) if isinstance(context, ToolContext) else None


def _rejected(results: list[Any]) -> bool:
    return any(result.output.behavior["type"] == "reject_content" for result in results)


class _RecordedCall(Model):
    """A model that asks for one recorded call and then has nothing more to say."""

    def __init__(self, call: Any) -> None:
        self._outputs = [call]

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        output = self._outputs.pop() if self._outputs else _NOTHING_MORE
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("a recorded call is not streamed")


_NOTHING_MORE = ResponseOutputMessage(
    type="message",
    id="msg_recorded",
    role="assistant",
    status="completed",
    content=[ResponseOutputText(type="output_text", text="", annotations=[])],
)


class _ToolHooks(AgentHooks[Any]):
    """Calls the application's tool hooks around the real body, with the application's objects.

    Attributes:
        tool_context: What the body was given, once it is about to start.
    """

    def __init__(
        self,
        owner: Agent[Any],
        run_hooks: RunHooks[Any] | None,
        tool: StepTool,
        run_config: RunConfig,
    ) -> None:
        self._owner = owner
        self._run_hooks = run_hooks
        self._tool = tool
        self._run_config = run_config
        self.tool_context: ToolContext[Any] | None = None

    async def on_tool_start(self, context: Any, agent: Any, tool: Tool) -> None:
        self.tool_context = _tool_context(context)
        if self.tool_context is not None:
            # An agent inside the tool inherits this configuration: it needs the real model.
            self.tool_context.run_config = self._run_config
        if self._run_hooks is not None:
            await self._run_hooks.on_tool_start(context, self._owner, self._tool)
        if self._owner.hooks is not None:
            await self._owner.hooks.on_tool_start(context, self._owner, self._tool)

    async def failed(self, told: str) -> None:
        """Tell that the tool has ended with a text for its failure, if it was told that it began.

        Here the body raises; in a plain run the text is its result.
        """
        if self.tool_context is not None:
            await self.on_tool_end(self.tool_context, self._owner, self._tool, told)

    async def on_tool_end(self, context: Any, agent: Any, tool: Tool, result: object) -> None:
        if self._run_hooks is not None:
            await self._run_hooks.on_tool_end(context, self._owner, self._tool, result)
        if self._owner.hooks is not None:
            await self._owner.hooks.on_tool_end(context, self._owner, self._tool, result)
