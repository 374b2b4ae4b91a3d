"""An agent with a custom, a shell and an apply-patch tool and a hosted MCP server, in a worker.

Its model says what follows from its input: first a call of every kind, then the question of the
MCP server, then the end. Bodies are logged in a folder and stop at a gate when a file named
`<tool>.gated` exists.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    ApplyPatchTool,
    CustomTool,
    HostedMCPTool,
    Model,
    ModelResponse,
    RunConfig,
    ShellTool,
    Tool,
)
from agents.editor import ApplyPatchOperation
from native_calls import approval_request, custom_call, patch_call, shell_call, spent
from stepped_session import says

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents.testing import FileGate, InvocationLog, run_agent_worker
from dex_agents_openai_agents import openai_agents_session_flow


class FollowingModel(Model):
    """A model without a memory: what it was sent decides what it says."""

    def __init__(self, folder: Path) -> None:
        self._log = InvocationLog(folder / "model.log")

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        items: list[Any] = kwargs["input"] if "input" in kwargs else args[1]
        self._log.record("call", input=items)
        kinds = {item.get("type") for item in items}
        if "shell_call" not in kinds:
            output: list[Any] = [
                shell_call("s1", "restart"),
                custom_call("look", "n1", "status"),
                patch_call("p1", "update_file", "config"),
            ]
        elif "mcp_approval_request" not in kinds:
            output = [approval_request("mcpr_1", "delete_account")]
        else:
            output = [says("All done.")]
        return ModelResponse(output=output, usage=spent(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def build_flow(folder: Path) -> AgentSessionFlow:
    """Build the flow; the test and its workers build the same one."""

    async def note(name: str) -> str:
        InvocationLog(folder / "tools.log").record(name)
        if (folder / f"{name}.gated").exists():
            gate = FileGate(folder, name)
            gate.mark_reached()
            await gate.wait_for_release()
        return f"{name} is done"

    class Editor:
        async def update_file(self, operation: ApplyPatchOperation) -> str:
            return await note("apply_patch")

        create_file = delete_file = update_file

    tools: list[Tool] = [
        ShellTool(lambda _request: note("shell")),
        CustomTool("look", "Look something up.", lambda _context, _text: note("look")),
        ApplyPatchTool(Editor()),
        HostedMCPTool(
            tool_config={
                "type": "mcp",
                "server_label": "crm",
                "server_url": "https://crm.invalid",
                "require_approval": "always",
            }
        ),
    ]
    return openai_agents_session_flow(
        Agent(name="Operator", model=FollowingModel(folder), tools=tools),
        flow_type="Operator",
        tool_policies={
            "look": ToolPolicy(ToolEffect.READ),
            "shell": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False),
        },
        run_config=RunConfig(tracing_disabled=True),
    )


if __name__ == "__main__":
    run_agent_worker([build_flow(Path(os.environ["OPERATOR_DIR"]))])
