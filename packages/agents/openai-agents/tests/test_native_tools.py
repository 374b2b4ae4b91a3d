"""Custom, shell and apply-patch tools: their calls run as Steps, the model sees no difference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    CustomTool,
    Runner,
    RunState,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    function_tool,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from native_calls import custom_call, patch_call, shell_call, whole
from stepped_session import as_text, call, says, script, session_of

from dex_agents import (
    AgentDefinitionError,
    AgentToolCall,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionError,
    ToolPolicy,
)
from dex_agents_openai_agents import OpenAIAgentsRunner, get_current_deferred_tool_execution
from dex_agents_openai_agents._stored.run_state import decode_run, encode_run

Reply = Callable[[str], Any]
USER: list[Any] = [{"role": "user", "content": "go"}]


def echo(text: str) -> Any:
    return f"did {text}"


def fail(text: str) -> Any:
    raise ValueError(f"no {text}")


@dataclass
class Kit:
    """The three tools, each answering with `reply`, and what they were given.

    Attributes:
        reply: Called with the words of the call.
        options: Further arguments of every tool.
        given: What bodies got.
        keys: Idempotency keys that bodies saw.
    """

    reply: Reply = echo
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    given: list[str] = field(default_factory=list[str])
    keys: list[str] = field(default_factory=list[str])

    def _run(self, text: str) -> Any:
        self.given.append(text)
        execution = get_current_deferred_tool_execution()
        if execution is not None:
            self.keys.append(execution.idempotency_key)
        return self.reply(text)

    def tools(self) -> list[Any]:
        async def invoke(_context: Any, text: str) -> Any:
            return self._run(text)

        async def execute(request: Any) -> Any:
            return self._run(" ".join(request.data.action.commands))

        kit = self

        class Editor:
            async def create_file(self, operation: ApplyPatchOperation) -> Any:
                return kit._run(operation.path)

            async def update_file(self, operation: ApplyPatchOperation) -> Any:
                return kit._run(operation.path)

            async def delete_file(self, operation: ApplyPatchOperation) -> Any:
                return kit._run(operation.path)

        return [
            CustomTool("note", "Take a note.", invoke, **self.options),
            ShellTool(execute, **self.options),
            ApplyPatchTool(Editor(), **self.options),
        ]

    def agent(self, model: Any) -> Agent[Any]:
        return Agent(name="A", model=model, tools=self.tools())


CALLS = {
    "custom": custom_call("note", "c1", "one"),
    "shell": shell_call("c1", "one"),
    "patch": patch_call("c1", "update_file", "one"),
}
NAMES = {"custom": "note", "shell": "shell", "patch": "apply_patch"}
OUTPUT_TYPES = {
    "custom": "custom_tool_call_output",
    "shell": "shell_call_output",
    "patch": "apply_patch_call_output",
}
every_kind = pytest.mark.parametrize("kind", list(CALLS))


async def both_ways(
    make_agent: Callable[[Any], Agent[Any]], *outputs: Any, **session: Any
) -> tuple[Any, Any, Any]:
    """Run the same responses as a plain run and as a session; return both models and the turn."""
    steps = [whole(*outputs), whole(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    await Runner.run(make_agent(plain_model), list(USER))
    turn = await session_of(make_agent(model), **session).turn("go")
    assert turn.text == "done"
    return plain_model, model, turn


def assert_same_requests(plain_model: Any, model: Any) -> None:
    assert [as_text(c.input) for c in model.calls] == [as_text(c.input) for c in plain_model.calls]


def assert_same_outputs(plain_model: Any, model: Any) -> None:
    assert sorted(as_text(model.calls[1].input)) == sorted(as_text(plain_model.calls[1].input))


def output_of(model: Any) -> Any:
    return model.calls[-1].input[-1]


# --- what the model sees ------------------------------------------------------------------------


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


# --- what fails ---------------------------------------------------------------------------------


@every_kind
async def test_a_failing_read_is_tried_three_times_and_told_as_in_a_plain_run(kind: str) -> None:
    kit = Kit(fail)
    plain_model, model, turn = await both_ways(kit.agent, CALLS[kind])
    assert_same_requests(plain_model, model)
    assert kit.given == ["one"] * 4, "once plain, three times in the session"
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert turn.records["c1"].error == "ValueError: no one"


@every_kind
async def test_a_failing_write_is_unknown_and_says_so_in_the_form_of_its_kind(kind: str) -> None:
    kit = Kit(fail)
    model = script(whole(CALLS[kind]), whole(says("done")))
    turn = await session_of(kit.agent(model), default_effect=ToolEffect.UNCLASSIFIED).turn("go")
    assert kit.given == ["one"], "a single attempt"
    assert turn.records["c1"].status is ToolCallStatus.OUTCOME_UNKNOWN
    output = output_of(model)
    assert (output["type"], output["call_id"]) == (OUTPUT_TYPES[kind], "c1")
    assert "not known" in str(output["output"])
    if kind == "patch":
        assert output["status"] == "failed"
    if kind == "shell":
        assert output["output"][0]["outcome"] == {"type": "exit", "exit_code": 1}


@every_kind
async def test_a_tool_may_say_that_it_did_nothing(kind: str) -> None:
    def refuse(_text: str) -> Any:
        raise ToolExecutionError("nothing was done")

    model = script(whole(CALLS[kind]), whole(says("done")))
    turn = await session_of(
        Kit(refuse).agent(model), default_effect=ToolEffect.NON_IDEMPOTENT_WRITE
    ).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert "nothing was done" in str(output_of(model)["output"])


# --- who is asked -------------------------------------------------------------------------------


@every_kind
async def test_a_person_is_asked_for_a_tool_without_a_policy(kind: str) -> None:
    model = script(whole(CALLS[kind]), whole(says("done")))
    session = session_of(Kit().agent(model), default_effect=ToolEffect.UNCLASSIFIED)
    await session.turn("go")
    assert session.asked == ["c1"]


@every_kind
@pytest.mark.parametrize("words", [None, "Not this one."])
async def test_a_rejected_call_looks_as_in_a_plain_run(kind: str, words: str | None) -> None:
    kit = Kit(options={"needs_approval": True})
    steps = [whole(CALLS[kind]), whole(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    plain = await Runner.run(kit.agent(plain_model), list(USER))
    state: RunState[Any, Any] = plain.to_state()
    [item] = plain.interruptions
    state.reject(item, rejection_message=words)
    await Runner.run(kit.agent(plain_model), state)
    session = session_of(kit.agent(model), answer=lambda _record: words or False)
    await session.turn("go")
    assert session.asked == ["c1"]
    assert kit.given == []
    assert_same_requests(plain_model, model)


@every_kind
async def test_a_tools_own_rule_is_asked_with_what_it_gets_in_a_plain_run(kind: str) -> None:
    asked: list[Any] = []

    def rule(_context: Any, what: Any, call_id: str) -> bool:
        shown = what if isinstance(what, str) else (getattr(what, "commands", None) or what.path)
        asked.append((type(what).__name__, shown, call_id))
        return True

    kit = Kit(options={"needs_approval": rule})
    plain_model = script(whole(CALLS[kind]))
    await Runner.run(kit.agent(plain_model), list(USER))
    model = script(whole(CALLS[kind]), whole(says("done")))
    session = session_of(kit.agent(model))
    await session.turn("go")
    assert asked == [asked[0]] * 2
    assert session.asked == ["c1"]


@every_kind
async def test_a_rule_that_raises_asks_a_person(kind: str) -> None:
    def rule(*_: Any) -> bool:
        raise ValueError("broken")

    model = script(whole(CALLS[kind]), whole(says("done")))
    session = session_of(Kit(options={"needs_approval": rule}).agent(model))
    await session.turn("go")
    assert session.asked == ["c1"]


@every_kind
@pytest.mark.parametrize(
    "decision", [{"approve": True}, {"approve": False}, {"approve": False, "reason": "never"}]
)
async def test_the_applications_own_decision_needs_no_person(
    kind: str, decision: dict[str, Any]
) -> None:
    kit = Kit(options={"needs_approval": True, "on_approval": lambda *_: decision})
    plain_model, model, turn = await both_ways(kit.agent, CALLS[kind], answer=lambda _record: "no")
    assert_same_requests(plain_model, model)
    assert list(turn.records) == (["c1"] if decision["approve"] else [])
    assert kit.given == (["one"] * 2 if decision["approve"] else [])


async def test_a_decision_against_one_call_leaves_the_others_to_the_session() -> None:
    @function_tool
    def ping() -> str:
        """Answer."""
        return "pong"

    kit = Kit(options={"needs_approval": True, "on_approval": lambda *_: {"approve": False}})

    def agent(model: Any) -> Agent[Any]:
        return Agent(name="A", model=model, tools=[*kit.tools(), ping])

    plain_model, model, turn = await both_ways(agent, CALLS["shell"], call("ping", "f1"))
    assert_same_outputs(plain_model, model)
    assert list(turn.records) == ["f1"]


async def test_a_decision_does_not_lift_what_a_policy_asks_for() -> None:
    kit = Kit(options={"needs_approval": True, "on_approval": lambda *_: {"approve": True}})
    model = script(whole(CALLS["shell"]), whole(says("done")))
    session = session_of(
        kit.agent(model), policies={"shell": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)}
    )
    await session.turn("go")
    assert session.asked == ["c1"]


# --- names, copies, threads ---------------------------------------------------------------------


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
