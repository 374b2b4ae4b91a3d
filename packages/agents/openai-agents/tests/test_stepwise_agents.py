"""Agents used as tools whose nested runs are Steps of the session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    HostedMCPTool,
    ModelSettings,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    ShellTool,
    function_tool,
)
from native_calls import approval_request, shell_call, whole
from stepped_session import call, outputs, response, says, script, session_of
from stepwise_runs import USER, Two, ask, both_ways, usual

from dex_agents import AgentToolCall, ToolEffect, ToolPolicy
from dex_agents_openai_agents._stored.run_state import decode_run, encode_run


@pytest.mark.sdk_fact("nested.one-model-call-per-step")
async def test_every_model_call_and_every_tool_call_of_a_nested_run_is_a_step() -> None:
    two, turn = await both_ways(usual)
    assert turn.kinds == [
        "ToolCallsRequested",
        "ToolCallsRequested",
        "ToolCallsRequested",
        "TurnContinues",
        "TurnCompleted",
    ]
    assert list(turn.records) == ["p1", "n1", "n2", "n3"]
    assert two.ran == ["look 1", "look 2", "look 3"]
    assert sorted(two.keys) == [f"session-1/turn-1/n{n}" for n in (1, 2, 3)]
    assert turn.records["p1"].effect is ToolEffect.READ
    assert outputs(two.outer_model.calls[1].input) == ["inner done"]


async def test_a_nested_answer_without_tools_costs_one_step() -> None:
    _, turn = await both_ways(
        lambda: Two(
            outer=[response(ask("p1")), response(says("done"))],
            inner=[response(says("at once"))],
        )
    )
    assert turn.kinds == ["ToolCallsRequested", "TurnContinues", "TurnCompleted"]


async def test_nested_runs_of_one_response_follow_one_another() -> None:
    def make() -> Two:
        return Two(
            outer=[response(ask("p1"), ask("p2"), call("ping", "f1")), response(says("done"))],
            inner=[response(says("first")), response(says("second"))],
        )

    plain, two = make(), make()
    await Runner.run(plain.outer, list(USER))
    turn = await two.session().turn("go")
    assert turn.text == "done"
    assert len(turn.kinds) == 4
    # The result of a later nested run stands behind those that were there before it.
    assert outputs(two.outer_model.calls[1].input) == ["first", "pong", "second"]
    assert sorted(two.requests()[1]) == sorted(plain.requests()[1])


async def test_a_second_nested_run_of_a_response_waits_for_the_calls_of_the_first() -> None:
    two = Two(
        outer=[response(ask("p1"), ask("p2")), response(says("done"))],
        inner=[
            response(call("look", "n1", x=1)),
            response(says("first")),
            response(call("look", "n2", x=2)),
            response(says("second")),
        ],
    )
    turn = await two.session().turn("go")
    assert turn.text == "done"
    assert outputs(two.outer_model.calls[1].input) == ["first", "second"]
    assert list(turn.records) == ["p1", "p2", "n1", "n2"]


async def test_a_later_turn_may_ask_the_nested_agent_again() -> None:
    two = Two(
        outer=[response(ask(c)) if c else response(says("done")) for c in ("p1", "", "p2", "")],
        inner=[response(says("one")), response(says("two"))],
    )
    session = two.session()
    await session.turn("go")
    await session.turn("again")
    assert outputs(two.outer_model.calls[3].input) == ["one", "two"]


@pytest.mark.parametrize("answer", [True, "Too much."])
async def test_case_21_an_approval_inside_is_asked_once_and_applied(answer: bool | str) -> None:
    def make() -> Two:
        return Two(
            outer=[response(ask("p1")), response(says("done"))],
            inner=[response(call("pay", "n1", amount=5)), response(says("inner done"))],
        )

    plain, two = make(), make()
    first = await Runner.run(plain.outer, list(USER))
    state: RunState[Any, Any] = first.to_state()
    [item] = first.interruptions
    if answer is True:
        state.approve(item)
    else:
        state.reject(item, rejection_message=str(answer))
    await Runner.run(plain.outer, state)
    session = two.session(answer=lambda _record: answer)
    turn = await session.turn("go")
    assert turn.text == "done"
    assert session.asked == ["n1"]
    assert two.requests() == plain.requests()
    assert two.ran == (["pay 5"] if answer is True else [])


async def test_a_policy_may_ask_a_person_before_the_nested_run_begins() -> None:
    two = Two(outer=[response(ask("p1")), response(says("done"))], inner=[])
    session = two.session(
        policies={"inner": ToolPolicy(ToolEffect.READ, requires_approval=True)},
        answer=lambda _record: "Not now.",
    )
    await session.turn("go")
    assert session.asked == ["p1"]
    assert outputs(two.outer_model.calls[1].input) == ["Not now."]


async def test_a_hosted_server_of_a_nested_agent_may_ask_too() -> None:
    two = Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[whole(approval_request("mcpr_1", "drop")), whole(says("inner done"))],
    )
    two.inner.tools.append(
        HostedMCPTool(
            tool_config={
                "type": "mcp",
                "server_label": "crm",
                "server_url": "https://crm.invalid",
                "require_approval": "always",
            }
        )
    )
    session = two.session(answer=lambda _record: "Keep it.")
    turn = await session.turn("go")
    assert turn.text == "done"
    assert session.asked == ["mcpr_1"]
    answer: Any = two.inner_model.calls[1].input[-1]
    assert (answer["approve"], answer["reason"]) == (False, "Keep it.")


async def test_the_run_context_of_a_nested_run_is_never_stored() -> None:
    seen: list[str] = []

    def look_at(state: str, records: dict[str, AgentToolCall]) -> str:
        seen.append(str(decode_run(state, records).state))
        return state

    two = usual()
    turn = await two.session(before_resume=look_at, context={"secret": "do not store"}).turn("go")
    assert turn.text == "done"
    assert any("agent_run_state" in state for state in seen)
    assert not any("do not store" in state for state in seen)


async def test_a_nested_run_that_another_framework_release_kept_ends_the_turn_with_words() -> None:
    def from_the_future(state: str, records: dict[str, AgentToolCall]) -> str:
        run = decode_run(state, records)
        return encode_run(replace(run, state={**run.state, "$schemaVersion": "99.0"}), records)

    turn = await usual().session(before_resume=from_the_future).turn("go")
    assert turn.failure.error_type == "NestedRunLost"


async def test_shell_calls_of_a_nested_agent_are_steps_too() -> None:
    two = Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[whole(shell_call("s1", "ls")), whole(says("inner done"))],
    )
    two.inner.tools.append(ShellTool(lambda _request: "listed"))
    turn = await two.session().turn("go")
    assert turn.records["s1"].output == "listed"
    assert turn.text == "done"


async def test_an_agent_tool_of_a_nested_agent_is_one_step_of_it() -> None:
    innermost_model = script(response(call("deep_look", "m1")), response(says("deep")))

    @function_tool
    def deep_look() -> str:
        """Look."""
        return "deep"

    two = Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[response(ask("q1", name="deeper")), response(says("middle"))],
    )
    innermost = Agent(name="Innermost", model=innermost_model, tools=[deep_look])
    two.inner.tools.append(innermost.as_tool("deeper", "Ask."))
    turn = await two.session().turn("go")
    assert turn.text == "done"
    assert list(turn.records) == ["p1", "q1"]
    assert turn.records["q1"].output == "deep"
    assert turn.usage.model_calls == 6


async def test_hooks_see_each_tool_once_with_its_real_result() -> None:
    class Seen(RunHooks[Any]):
        def __init__(self) -> None:
            self.tools: list[str] = []

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            self.tools.append(f"{tool.name}: {result}")

    class AgentSeen(AgentHooks[Any]):
        def __init__(self) -> None:
            self.tools: list[str] = []

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            self.tools.append(f"{tool.name}: {result}")

    nested, inner, run = Seen(), AgentSeen(), Seen()
    two = Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[response(call("look", "n1", x=1)), response(says("inner done"))],
        hooks=nested,
    )
    two.inner.hooks = inner
    await two.session(hooks=run).turn("go")
    assert nested.tools == inner.tools == ["look: saw 1"]
    assert run.tools == [], "the outer run has no tool of its own here but the nested run"


async def test_a_run_wide_model_is_used_inside_too() -> None:
    two = usual()
    model = script(
        response(ask("p1")),
        response(call("look", "n1", x=1)),
        response(says("inner done")),
        response(says("done")),
    )
    session = session_of(
        two.outer,
        models=[model],
        run_config=RunConfig(model=model, model_settings=ModelSettings(temperature=0.5)),
    )
    turn = await session.turn("go")
    assert turn.text == "done"
    assert [c.system_instructions for c in model.calls] == ["out", "in", "in", "out"]
