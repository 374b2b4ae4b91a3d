"""Approvals that a provider asks for before it calls a tool of an MCP server itself.

The provider runs the tool inside the next model call. So the session asks a person, as for any
call, and the Step that would run an approved call has nothing to do: the answer alone goes back.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from agents import Agent, HostedMCPTool, ToolApprovalItem

from dex_agents import AgentToolCall, ToolCallStatus, ToolExecutionResult
from dex_agents_openai_agents._stored.tool_results import CallOrigin
from dex_agents_openai_agents._tools.base import raw_field

REQUEST_TYPE: Final = "mcp_approval_request"
_SERVER: Final = "mcp_server"


def is_request(item: ToolApprovalItem) -> bool:
    """Whether a pending approval is one of a provider's own tool call."""
    return raw_field(item, "type") == REQUEST_TYPE


def policy_name(item: ToolApprovalItem) -> str:
    """Return the name of the tool in policies and records: `<server label>.<tool name>`."""
    return f"{raw_field(item, 'server_label')}.{raw_field(item, 'name')}"


def origin(item: ToolApprovalItem) -> CallOrigin:
    """Return where a request comes from."""
    details = {_SERVER: raw_field(item, "server_label")}
    return CallOrigin(item.agent.name, str(raw_field(item, "name")), details=details)


def server_of(origin: CallOrigin) -> str | None:
    """Return the label of the server, or `None` for a call that is no such request."""
    server = origin.details.get(_SERVER)
    return server if isinstance(server, str) else None


def server_labels(agent: Agent[Any]) -> set[str]:
    """Return the labels of the servers that the provider reaches for an agent."""
    return {
        tool.tool_config["server_label"] for tool in agent.tools if isinstance(tool, HostedMCPTool)
    }


def step_result() -> ToolExecutionResult:
    """Return what an approved request leaves in its record."""
    return ToolExecutionResult("Approved; the provider runs the tool in the next model call.")


def is_approved(record: AgentToolCall) -> bool:
    """Whether a person said yes. A lost Step changes nothing: it had nothing to do."""
    return record.status in (ToolCallStatus.SUCCEEDED, ToolCallStatus.OUTCOME_UNKNOWN)


class Decider(Protocol):
    """Decides a pending call."""

    def approve(self) -> None: ...

    def reject(self, message: str | None) -> None: ...


def settle(record: AgentToolCall, decider: Decider) -> None:
    """Give the answer to the framework."""
    if is_approved(record):
        decider.approve()
    else:
        decider.reject(record.rejection_message or record.error)


def response_item(request_id: str, record: AgentToolCall) -> dict[str, Any]:
    """Return the input item of an answer, without the framework's help."""
    item: dict[str, Any] = {
        "type": "mcp_approval_response",
        "approval_request_id": request_id,
        "approve": is_approved(record),
    }
    reason = record.rejection_message or record.error
    return {**item, "reason": reason} if reason and not item["approve"] else item
