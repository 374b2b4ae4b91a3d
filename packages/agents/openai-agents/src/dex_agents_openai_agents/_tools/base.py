"""What the runner must know about a kind of tool to run its calls as Steps."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast

from agents import Agent, RunContextWrapper, ToolApprovalItem, ToolCallOutputItem

from dex_agents import AgentToolCall, ToolExecutionResult
from dex_agents_openai_agents._stored.tool_results import CallOrigin
from dex_agents_openai_agents._tools.gate_scope import RecordedFailure, StepTool

ToolT = TypeVar("ToolT", bound=StepTool)


class ToolKind(ABC, Generic[ToolT]):
    """One kind of tool.

    Three copies of a tool are in use: the application's own, the *gate* that model Steps use, and
    the *body* that the tool Step runs.

    Attributes:
        tool_type: Class of the framework.
        call_type: Type of the items in which a model calls such a tool.
        max_turns: Turns of the run that carries out one call. A function tool's result can end
            the run itself; behind the others the recorded model has to say something.
    """

    tool_type: ClassVar[type[Any]]
    call_type: ClassVar[str]
    max_turns: ClassVar[int] = 2

    def policy_name(self, tool: ToolT) -> str:
        """Return the name under which policies and records know the tool."""
        return tool.name

    @abstractmethod
    def gate(self, tool: ToolT) -> ToolT:
        """Return a copy that asks for approval and then returns the recorded result."""

    @abstractmethod
    def original(self, tool: ToolT) -> ToolT | None:
        """Return the application's tool behind a gate, or `None` for a tool that is no gate."""

    @abstractmethod
    def body(self, tool: ToolT, raised: list[Exception]) -> ToolT:
        """Return a copy that runs at once.

        Args:
            tool: The application's tool.
            raised: Receives what the body raises, where the framework would turn it into text.
        """

    @abstractmethod
    async def needs_approval(
        self, tool: ToolT, context: RunContextWrapper[Any], item: ToolApprovalItem
    ) -> bool:
        """Ask the tool's own rule, exactly as a plain run does."""

    def on_approval(self, tool: ToolT) -> Callable[..., Any] | None:
        """Return the application's function that decides calls that need approval, if any."""
        return getattr(tool, "on_approval", None)

    @abstractmethod
    def arguments(self, item: ToolApprovalItem) -> str:
        """Return the arguments of a call as the record keeps them."""

    def details(self, item: ToolApprovalItem) -> dict[str, Any]:
        """Return what `replay` needs beside the arguments."""
        return {}

    @abstractmethod
    def replay(self, call_id: str, origin: CallOrigin, arguments: str) -> Any:
        """Return the output of a model that makes a recorded call again."""

    @abstractmethod
    def result(
        self,
        origin: CallOrigin,
        owner: Agent[Any],
        tool: ToolT,
        item: ToolCallOutputItem,
        is_replaced: bool,
    ) -> ToolExecutionResult:
        """Return what the session stores for a tool that returned.

        Args:
            origin: Of the call.
            owner: Agent of the call.
            tool: The application's tool.
            item: The framework's item for the output.
            is_replaced: Whether a guardrail put a text of its own in the place of the output.
        """

    @abstractmethod
    def recorded(self, record: AgentToolCall, owner: Agent[Any], tool: ToolT | None) -> object:
        """Return what the gate is to return for a record that succeeded."""

    def failed(self, text: str) -> RecordedFailure | None:
        """Return what the gate is to raise for a failed call, or `None` to reject the call.

        Args:
            text: What the model reads.
        """
        return None

    def output_item(self, call_id: str, record: AgentToolCall, text: str) -> dict[str, Any]:
        """Return the input item of a final record, without the framework's help.

        Args:
            call_id: As the model knows it.
            record: The record.
            text: What the model reads when the record has nothing more.
        """
        return {"type": f"{self.call_type}_output", "call_id": call_id, "output": text}


def raw_field(item: ToolApprovalItem, name: str) -> Any:
    """Read a field of a pending call, which is an object at first and a mapping once restored."""
    return value_field(item.raw_item, name)


def value_field(value: object, name: str) -> Any:
    """Read a field of an object or of a mapping."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(name)
    return getattr(value, name, None)


async def ask_rule(rule: bool | Callable[..., Any], *arguments: Any) -> bool:
    """Return the answer of a `needs_approval` setting."""
    answer = rule(*arguments) if callable(rule) else rule
    return bool(await answer if inspect.isawaitable(answer) else answer)


async def call_body(raised: list[Exception], body: Callable[..., Any], *arguments: Any) -> Any:
    """Call a body of the application.

    A plain function runs in a thread: on the event loop it would hold up the heartbeats of every
    Step of the worker.

    Args:
        raised: Receives what the body raises.
        body: A function, a coroutine function or an object with either as `__call__`.
        arguments: For the body.
    """
    try:
        if inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(
            getattr(body, "__call__", None)  # noqa: B004 - asks what kind of function it is
        ):
            return await body(*arguments)
        returned = await asyncio.to_thread(body, *arguments)
        return await returned if inspect.isawaitable(returned) else returned
    except Exception as error:
        raised.append(error)
        raise
