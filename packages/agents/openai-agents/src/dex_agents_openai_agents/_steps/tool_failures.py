"""What a failed tool call means for the session, and what the model reads about it.

Where the effect of the tool allows to call it failed, the model reads what a plain run would have
shown it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from agents import (
    AgentsException,
    FunctionTool,
    ModelBehaviorError,
    RunContextWrapper,
    ToolInputGuardrailTripwireTriggered,
)
from agents.exceptions import ToolTimeoutError
from agents.tool import default_tool_error_function
from agents.tool_context import ToolContext

from dex_agents import ToolEffect, ToolExecutionError
from dex_agents_openai_agents import _sdk_internals as sdk
from dex_agents_openai_agents._stored.tool_results import CallOrigin
from dex_agents_openai_agents._tools.gate_scope import StepTool


@dataclass
class FailedCall:
    """One call that raised.

    Attributes:
        origin: Of the call.
        tool: The application's tool.
        effect: Of the tool.
        is_last_attempt: Whether the session would not try again.
        context: Run context of the Step.
        tool_context: What the body was given, if it came that far.
        told: What the model reads in place of a result, once `outcome` has decided on it.
    """

    origin: CallOrigin
    tool: StepTool
    effect: ToolEffect
    is_last_attempt: bool
    context: object
    tool_context: ToolContext[Any] | None
    told: str | None = field(default=None, init=False)

    async def outcome(self, raised: Exception) -> Exception:
        """Return the error that tells the session what became of the call."""
        tool = self.tool
        error = sdk.unwrap_tool_error(raised, tool.name)
        if isinstance(error, ToolExecutionError):
            return ToolExecutionError(error.message)
        invalid = _invalid_arguments_error(error, tool.name)
        if invalid is not None:
            return self._told(str(invalid), await self._plain_text(error))
        if isinstance(error, ToolInputGuardrailTripwireTriggered):
            return ToolExecutionError(
                f"The guardrail {error.guardrail.get_name()!r} stopped this call; it was not run."
            )
        if self.effect is not ToolEffect.READ:
            # The call may have had its effect, so it is never reported as plainly failed.
            return error
        if isinstance(tool, FunctionTool):
            if isinstance(error, ToolTimeoutError) and error.tool_name == tool.name:
                text = await self._timeout_text(tool, error)
                return self._told(text, text)
            if isinstance(error, AgentsException) and sdk.nested_agent(tool) is not None:
                # A limit or a guardrail of the nested run: another attempt would meet it again.
                return self._told(str(error), await self._plain_text(error))
        if not self.is_last_attempt:
            return error
        text = await self._plain_text(error)
        if text is None:
            return error
        formatter = sdk.custom_failure_formatter(tool) if isinstance(tool, FunctionTool) else None
        if formatter is None or formatter is default_tool_error_function:
            # The fixed sentence helps nobody who looks into the record.
            return self._told(f"{type(error).__name__}: {error}", text)
        return self._told(text, text)

    def _told(self, error: str, text: str | None) -> ToolExecutionError:
        self.told = text
        payload = None if text is None else self.origin.encode(told=text)
        return ToolExecutionError(error, framework_payload=payload)

    async def _timeout_text(self, tool: FunctionTool, error: ToolTimeoutError) -> str:
        formatter = tool.timeout_error_function
        if formatter is None:
            return str(error)
        text = formatter(self.tool_context or RunContextWrapper(self.context), error)
        return await text if inspect.isawaitable(text) else text

    async def _plain_text(self, error: Exception) -> str | None:
        """Return what a plain run tells the model, or `None` where it ends with the error."""
        if not isinstance(self.tool, FunctionTool):
            return str(error) or type(error).__name__
        if self.tool_context is None:
            return None
        return await sdk.failure_text(self.tool, self.tool_context, error)


def _invalid_arguments_error(error: Exception, tool_name: str) -> ToolExecutionError | None:
    """Return the error for the model if the arguments did not fit the tool, else `None`.

    The framework checks arguments before the body runs and starts this message with the name of
    the very tool.
    """
    if isinstance(error, ModelBehaviorError) and error.message.startswith(
        f"Invalid JSON input for tool {tool_name}"
    ):
        return ToolExecutionError(f"Invalid JSON input for tool {tool_name}")
    return None
