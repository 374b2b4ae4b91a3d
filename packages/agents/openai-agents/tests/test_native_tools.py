"""Custom, shell and apply-patch tools: their calls run as Steps, the model sees no difference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from agents import (
    Agent,
    CustomTool,
    Runner,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    function_tool,
)
from agents.editor import ApplyPatchResult
from native_calls import custom_call, patch_call, shell_call, whole
from native_kit import (
    CALLS,
    NAMES,
    USER,
    Kit,
    assert_same_outputs,
    assert_same_requests,
    both_ways,
    echo,
    every_kind,
)
from stepped_session import call, says, script, session_of

from dex_agents import AgentDefinitionError, AgentToolCall, ToolEffect, ToolPolicy
from dex_agents_openai_agents import OpenAIAgentsRunner, get_current_deferred_tool_execution
from dex_agents_openai_agents._stored.run_state import decode_run, encode_run


@pytest.mark.sdk_fact(
    "kind.custom-tools-can-be-gated", "kind.shells-can-be-gated", "kind.patches-can-be-gated"
)
async def test_calls_of_all_kinds_give_the_model_what_a_plain_run_gives() -> None:
    @function_tool
    def ping() -> str:
        """Answer."""
        return "pong"

    kit = Kit()

    def agent(model: Any) -> Agent[Any]:
        return Agent(name="A", model=model, tools=[*kit.tools(), ping])

    plain_model, model, turn = await both_ways(
        agent,
        patch_call("p1", "create_file", "a.txt"),
        shell_call("s1", "ls", "pwd", timeout_ms=10),
        custom_call("note", "n1", "not { JSON"),
        call("ping", "f1"),
    )
    assert_same_outputs(plain_model, model)
    answered = [item["call_id"] for item in model.calls[1].input[-4:]]
    assert answered == ["p1", "s1", "n1", "f1"], "a plain run sorts the results by kind"
    assert list(turn.records) == ["p1", "s1", "n1", "f1"], "model order, not by kind"
    assert turn.records["p1"].arguments == '{"type": "create_file", "path": "a.txt", "diff": "+a"}'
    assert turn.records["s1"].arguments == '{"commands": ["ls", "pwd"], "timeout_ms": 10}'
    assert turn.records["n1"].arguments == "not { JSON"
    assert turn.records["n1"].output == "did not { JSON"
    assert kit.keys == [f"session-1/turn-1/{call_id}" for call_id in ("p1", "s1", "n1")]


@every_kind
async def test_no_body_runs_inside_a_model_step(kind: str) -> None:
    kit = Kit()
    model = script(whole(CALLS[kind]), whole(says("done")))
    session = session_of(kit.agent(model), body_runs=lambda: len(kit.given))
    await session.turn("go")
    assert kit.given == ["one"]


SHELL_RESULTS: dict[str, Any] = {
    "exit codes and errors": ShellResult(
        output=[
            ShellCommandOutput("out", "err", ShellCallOutcome("exit", 3), "ls", {"pid": 4}),
            ShellCommandOutput("", "", ShellCallOutcome("timeout")),
        ],
        provider_data={"host": "h"},
    ),
    "more than the limit": ShellResult(
        output=[ShellCommandOutput("long" * 9, "also long", ShellCallOutcome("exit", 0))],
        max_output_length=7,
    ),
    "nothing": ShellResult(output=[]),
    "text": "just text",
    "no result of a shell": ShellResult(output=[7]),  # pyright: ignore[reportArgumentType] - what it does with a mistake
}


@pytest.mark.parametrize("name", list(SHELL_RESULTS))
@pytest.mark.parametrize("limits", [{}, {"max_output_length": 5}])
async def test_results_of_a_shell_keep_their_form(name: str, limits: dict[str, int]) -> None:
    kit = Kit(lambda _text: SHELL_RESULTS[name])
    plain_model, model, _ = await both_ways(kit.agent, shell_call("s1", "ls", **limits))
    assert_same_requests(plain_model, model)


PATCH_RESULTS: dict[str, Any] = {
    "nothing": None,
    "text": "patched",
    "failed": ApplyPatchResult(status="failed", output="conflict"),
    "completed": ApplyPatchResult(status="completed"),
}


@pytest.mark.parametrize("name", list(PATCH_RESULTS))
@pytest.mark.parametrize("operation", ["create_file", "update_file", "delete_file"])
async def test_results_of_an_editor_keep_their_form(name: str, operation: str) -> None:
    kit = Kit(lambda _text: PATCH_RESULTS[name])
    plain_model, model, _ = await both_ways(kit.agent, patch_call("p1", operation, "a"))
    assert_same_requests(plain_model, model)


async def test_equal_patches_of_one_response_each_get_their_own_result() -> None:
    def counting() -> Callable[[Any], Agent[Any]]:
        numbers = iter(range(100))
        return lambda model: Kit(lambda text: f"{text} {next(numbers)}").agent(model)

    again = [patch_call(f"p{n}", "update_file", path) for n, path in enumerate("aabab")]
    steps = [whole(*again), whole(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    await Runner.run(counting()(plain_model), list(USER))
    await session_of(counting()(model)).turn("go")
    assert_same_requests(plain_model, model)


async def test_several_operations_of_one_call_are_one_step() -> None:
    several = custom_call(
        "apply_patch",
        "p1",
        '{"operations": [{"type": "update_file", "path": "a", "diff": "+1"},'
        ' {"type": "delete_file", "path": "b", "diff": "ignored"},'
        ' {"type": "update_file", "path": "a", "diff": "+2"}]}',
    )
    kit = Kit(lambda text: None if text == "b" else f"did {text}")
    plain_model, model, turn = await both_ways(
        kit.agent, several, patch_call("p2", "delete_file", "b")
    )
    assert_same_requests(plain_model, model)
    assert kit.given == ["a", "b", "a", "b"] * 2
    assert turn.records["p1"].output == "did a\ndid a"


def test_policies_name_these_tools_as_the_model_does() -> None:
    runner = OpenAIAgentsRunner(Kit().agent(None))
    read = ToolPolicy(ToolEffect.READ)
    runner.validate_tool_policies(dict.fromkeys(NAMES.values(), read))
    with pytest.raises(AgentDefinitionError, match="apply_patch, note, shell"):
        runner.validate_tool_policies({"bash": read})


def test_a_function_tool_may_not_have_the_name_of_the_shell() -> None:
    @function_tool
    def shell() -> str:
        """Not a shell."""
        return ""

    with pytest.raises(AgentDefinitionError, match="two tools named 'shell'"):
        OpenAIAgentsRunner(Agent(name="A", tools=[*Kit().tools(), shell]))


def test_the_applications_tools_are_left_as_they_were() -> None:
    kit = Kit(options={"needs_approval": True, "on_approval": lambda *_: {"approve": True}})
    tools = kit.tools()
    before = [dict(vars(tool)) for tool in tools]
    OpenAIAgentsRunner(Agent(name="A", tools=tools))
    assert [dict(vars(tool)) for tool in tools] == before


async def test_a_custom_tool_with_a_rule_of_its_own_kind_is_gated_too() -> None:
    class Careful(CustomTool):
        def runtime_needs_approval(self) -> Any:
            return lambda _context, text, _call_id: "rm" in text

    ran: list[str] = []

    async def invoke(_context: Any, text: str) -> str:
        ran.append(text)
        return "ok"

    tool = Careful("note", "Take a note.", invoke)
    model = script(
        whole(custom_call("note", "c1", "ls"), custom_call("note", "c2", "rm")),
        whole(says("done")),
    )
    session = session_of(Agent(name="A", model=model, tools=[tool]), body_runs=lambda: len(ran))
    await session.turn("go")
    assert session.asked == ["c2"]
    assert sorted(ran) == ["ls", "rm"]


async def test_a_plain_function_runs_in_a_thread_and_knows_its_call() -> None:
    seen: list[Any] = []

    def execute(_request: Any) -> str:
        execution = get_current_deferred_tool_execution()
        seen.append((threading.current_thread() is threading.main_thread(), execution is None))
        return "ok"

    model = script(whole(shell_call("s1", "ls")), whole(says("done")))
    await session_of(Agent(name="A", model=model, tools=[ShellTool(execute)])).turn("go")
    assert seen == [(False, False)]


async def test_a_state_the_framework_refuses_goes_on_from_items_of_every_kind() -> None:
    def from_the_future(state: str, records: dict[str, AgentToolCall]) -> str:
        run = decode_run(state, records)
        return encode_run(replace(run, state={**run.state, "$schemaVersion": "99.0"}), records)

    kit = Kit(lambda text: SHELL_RESULTS["exit codes and errors"] if text == "ls" else echo(text))
    plain_model, model, _ = await both_ways(
        kit.agent,
        custom_call("note", "n1", "one"),
        shell_call("s1", "ls"),
        shell_call("s2", "pwd"),
        patch_call("p1", "update_file", "a"),
        before_resume=from_the_future,
    )
    assert_same_outputs(plain_model, model)


async def test_an_executor_gets_the_request_of_a_plain_run_with_its_time_limit() -> None:
    requests: list[Any] = []

    def execute(request: Any) -> str:
        data = request.data
        requests.append((data.call_id, data.action, data.status, data.raw))
        return "ok"

    def agent(model: Any) -> Agent[Any]:
        return Agent(name="A", model=model, tools=[ShellTool(execute)])

    await both_ways(agent, shell_call("s1", "sleep 9", timeout_ms=50, max_output_length=9))
    plain, durable = requests
    assert durable == plain
    assert durable[1].timeout_ms == 50
