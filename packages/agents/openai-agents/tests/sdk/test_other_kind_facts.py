"""Which tools that are no function tools can be gated, and how."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    HostedMCPTool,
    LocalShellTool,
    Runner,
    RunState,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    Tool,
)
from native_calls import approval_request, custom_call, patch_call, shell_call, whole
from sdk_runs import USER, approved, pending_ids, restored, soft_stopped
from stepped_session import says, script


async def never(_context: Any, _text: str) -> str:
    """A body that must not run."""
    raise AssertionError("a body ran")


def gated_note(recorded: str) -> CustomTool:
    async def invoke(_context: Any, _text: str) -> str:
        return recorded

    gate = copy.copy(CustomTool("note", "Note.", never))
    gate.on_invoke_tool = invoke
    gate.needs_approval = True
    return gate


def gated_shell(recorded: ShellResult) -> ShellTool:
    def never_executed(_request: Any) -> str:
        raise AssertionError("a body ran")

    gate = copy.copy(ShellTool(executor=never_executed))
    gate.executor = lambda _request: recorded
    gate.needs_approval = True
    return gate


class Editor:
    """An editor that does what it was told to, or nothing."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.paths: list[str] = []

    def create_file(self, operation: Any) -> Any:
        self.paths.append(operation.path)
        return self.result

    update_file = delete_file = create_file


def gated_patch(editor: Editor) -> ApplyPatchTool:
    gate = copy.copy(ApplyPatchTool(editor=Editor(None)))
    gate.editor = editor
    gate.needs_approval = True
    return gate


async def given_back(tool: Tool, recorded: Any) -> dict[str, Any]:
    """Stop at the gate, approve over JSON; return the item that the model gets."""
    model = script(whole(recorded), whole(says("done")))
    agent = Agent[Any](name="A", model=model, tools=[tool])
    stopped = await soft_stopped(agent, USER)
    assert (pending_ids(stopped), len(model.calls)) == (["x1"], 1)
    await soft_stopped(agent, await approved(agent, stopped))
    item: Any = model.calls[1].input[-1]
    return item


@pytest.mark.sdk_fact("kind.custom-tools-can-be-gated")
async def test_a_custom_tool_waits_and_gives_what_its_replaced_body_returns() -> None:
    item = await given_back(gated_note("recorded"), custom_call("note", "x1", "text"))
    assert (item["type"], item["output"]) == ("custom_tool_call_output", "recorded")


@pytest.mark.sdk_fact("kind.shells-can-be-gated")
async def test_a_shell_waits_and_gives_what_its_replaced_executor_returns() -> None:
    outcome = ShellCallOutcome("exit", 3)
    recorded = ShellResult(output=[ShellCommandOutput("out", "err", outcome, "ls")])
    item = await given_back(gated_shell(recorded), shell_call("x1", "ls"))
    assert item["type"] == "shell_call_output"
    [entry] = item["output"]
    assert (entry["stdout"], entry["stderr"]) == ("out", "err")
    assert entry["outcome"] == {"type": "exit", "exit_code": 3}


@pytest.mark.sdk_fact("kind.patches-can-be-gated")
async def test_a_patch_waits_and_goes_to_the_replaced_editor() -> None:
    editor = Editor("recorded")
    item = await given_back(gated_patch(editor), patch_call("x1", "create_file", "a.txt"))
    assert item["type"] == "apply_patch_call_output"
    assert item["output"] == "recorded"
    assert editor.paths == ["a.txt"]


@pytest.mark.sdk_fact("kind.some-tools-have-no-approval")
@pytest.mark.parametrize("kind", [ComputerTool, LocalShellTool])
def test_computer_and_local_shell_tools_have_no_approval_to_stop_at(kind: Any) -> None:
    assert not hasattr(kind, "needs_approval")
    assert "needs_approval" not in kind.__dataclass_fields__


def crm() -> HostedMCPTool:
    return HostedMCPTool(
        tool_config={
            "type": "mcp",
            "server_label": "crm",
            "server_url": "https://crm.invalid",
            "require_approval": "always",
        }
    )


@pytest.mark.sdk_fact("kind.hosted-approvals-are-pending-calls")
@pytest.mark.parametrize("is_approved", [True, False])
async def test_a_providers_question_waits_over_json_and_takes_an_answer_with_a_reason(
    is_approved: bool,
) -> None:
    model = script(whole(approval_request("r1", "drop", '{"id":7}')), whole(says("done")))
    agent = Agent[Any](name="A", model=model, tools=[crm()])
    state: RunState[Any, Any] = await restored(agent, await soft_stopped(agent, USER))
    [item] = state.get_interruptions()
    raw: Any = item.raw_item
    assert raw["type"] == "mcp_approval_request"
    assert (raw["server_label"], raw["name"], item.arguments) == ("crm", "drop", '{"id":7}')
    if is_approved:
        state.approve(item)
    else:
        state.reject(item, rejection_message="Keep it.")
    await Runner.run(agent, state)
    answer: Any = model.calls[1].input[-1]
    assert answer["type"] == "mcp_approval_response"
    assert answer["approval_request_id"] == "r1"
    assert (answer["approve"], answer.get("reason")) == (
        is_approved,
        None if is_approved else "Keep it.",
    )
