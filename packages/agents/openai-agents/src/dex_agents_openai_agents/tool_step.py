"""One tool Step: the framework carries out one recorded call, with everything that belongs to it.

The run has a model that repeats the recorded call and ends at its result, so guardrails, argument
checks, timeouts, threads for sync tools and structured outputs are those of a plain run.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import AsyncIterator
from typing import Any, cast

from agents import (
    Agent,
    AgentHooks,
    AgentsException,
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
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    Usage,
)
from agents.exceptions import ToolTimeoutError
from agents.tool import default_tool_error_function
from agents.tool_context import ToolContext
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from dex_agents import (
    DeferredToolExecution,
    ToolEffect,
    ToolExecutionError,
    ToolExecutionResult,
)
from dex_agents_openai_agents import _sdk_internals as sdk
from dex_agents_openai_agents import hosted_mcp
from dex_agents_openai_agents.call_ids import to_model_call_id
from dex_agents_openai_agents.errors import invalid_arguments_error, unwrap_tool_error
from dex_agents_openai_agents.execution import current_execution
from dex_agents_openai_agents.gate_scope import StepTool
from dex_agents_openai_agents.graph import AgentGraph, GraphAgent
from dex_agents_openai_agents.kinds import ToolKind, kind_of
from dex_agents_openai_agents.settings import RunnerSettings
from dex_agents_openai_agents.tool_results import CallOrigin, withheld_result
from dex_agents_openai_agents.usage import UsageMark, usage_since


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
        is_nested = _is_nested(tool)
        raised: list[Exception] = []
        try:
            with current_execution(None if is_nested else self._execution):
                result = await self._run_through_framework(
                    origin, owner, kind.body(tool, raised), kind, tool, context
                )
            if raised:
                raise raised[-1]
        except ToolOutputGuardrailTripwireTriggered as error:
            if is_nested:
                raise await self._failure(tool, context, error) from error
            # The body ran; only its output is refused. The next model Step fails the turn.
            return withheld_result(origin, error.guardrail.get_name())
        except Exception as error:
            raise await self._failure(tool, context, error) from error
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

    async def _run_through_framework(
        self,
        origin: CallOrigin,
        owner: GraphAgent,
        body: Tool,
        kind: ToolKind[Any],
        tool: StepTool,
        context: object,
    ) -> RunResult:
        settings, record = self._settings, self._record
        turn = (self._execution.flow_id, record.turn_id)
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
        probe.hooks = _ToolHooks(
            owner.original, settings.hooks, tool, settings.turn_run_config(*turn)
        )
        return await Runner.run(
            _without_own_tool_list(probe),
            "",
            context=cast(Any, context),
            run_config=settings.tool_run_config(*turn),
            max_turns=kind.max_turns,
        )

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
            raise ToolExecutionError(str(item.output))
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

    async def _failure(self, tool: FunctionTool, context: object, raised: Exception) -> Exception:
        """Return what the session is to make of a failed call."""
        error = unwrap_tool_error(raised, tool.name)
        invalid = invalid_arguments_error(error, tool.name)
        if invalid is not None:
            return invalid
        if isinstance(error, ToolInputGuardrailTripwireTriggered):
            return ToolExecutionError(
                f"The guardrail {error.guardrail.get_name()!r} stopped this call; it was not run."
            )
        if self._record.effect is not ToolEffect.READ:
            # The call may have had its effect, so it is never reported as plainly failed.
            return error
        wrapper = RunContextWrapper(context)
        if isinstance(error, ToolTimeoutError) and error.tool_name == tool.name:
            format_timeout = tool.timeout_error_function
            text = str(error) if format_timeout is None else format_timeout(wrapper, error)
            return ToolExecutionError(await text if inspect.isawaitable(text) else text)
        if isinstance(error, AgentsException) and sdk.nested_agent(tool) is not None:
            # A limit or a guardrail of the nested run: another attempt would meet it again.
            return ToolExecutionError(str(error))
        formatter = sdk.custom_failure_formatter(tool)
        is_last = self._execution.attempt >= self._settings.tool_attempts
        if is_last and formatter is not None and formatter is not default_tool_error_function:
            text = formatter(wrapper, error)
            return ToolExecutionError(await text if inspect.isawaitable(text) else text)
        return error


def _without_own_tool_list(probe: Agent[Any]) -> Agent[Any]:
    """Make sure that the run sees the one tool, also for an agent that lists its tools itself."""
    if type(probe).get_all_tools is not Agent.get_all_tools:
        base = type(probe)
        probe.__class__ = type(base.__name__, (base,), {"get_all_tools": Agent.get_all_tools})
    return probe


def _is_nested(tool: StepTool) -> bool:
    return isinstance(tool, FunctionTool) and sdk.nested_agent(tool) is not None


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
    """Calls the application's tool hooks around the real body, with the application's objects."""

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

    async def on_tool_start(self, context: Any, agent: Any, tool: Tool) -> None:
        if isinstance(context, ToolContext):
            # An agent inside the tool inherits this configuration: it needs the real model.
            context.run_config = self._run_config
        if self._run_hooks is not None:
            await self._run_hooks.on_tool_start(context, self._owner, self._tool)
        if self._owner.hooks is not None:
            await self._owner.hooks.on_tool_start(context, self._owner, self._tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Tool, result: object) -> None:
        if self._run_hooks is not None:
            await self._run_hooks.on_tool_end(context, self._owner, self._tool, result)
        if self._owner.hooks is not None:
            await self._owner.hooks.on_tool_end(context, self._owner, self._tool, result)
