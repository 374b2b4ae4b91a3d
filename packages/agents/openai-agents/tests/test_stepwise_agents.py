"""Agents used as tools whose nested runs are Steps of the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    AgentHooks,
    FunctionTool,
    HostedMCPTool,
    Model,
    ModelResponse,
    ModelSettings,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    ShellTool,
    function_tool,
)
from agents.testing import ModelStep
from forked_steps import ForkedRunner, reach
from native_calls import approval_request, shell_call, spent, whole
from stepped_session import (
    SteppedSession,
    SteppedTurn,
    as_text,
    call,
    outputs,
    response,
    says,
    script,
    session_of,
)

from dex_agents import (
    AgentDefinitionError,
    AgentToolCall,
    ModelError,
    ToolCallStatus,
    ToolEffect,
    ToolPolicy,
)
from dex_agents_openai_agents import (
    OpenAIAgentsRunner,
    get_current_deferred_tool_execution,
    stepwise_agent_tool,
)
from dex_agents_openai_agents._stored.run_state import decode_run, encode_run

USER: list[Any] = [{"role": "user", "content": "go"}]


def ask(call_id: str, text: str = "look", name: str = "inner") -> Any:
    return call(name, call_id, input=text)


class Two:
    """An outer agent with one nested agent, both with a `look` of their own."""

    def __init__(self, outer: list[Any], inner: list[Any], **options: Any) -> None:
        self.outer_model, self.inner_model = script(*outer), script(*inner)
        self.ran: list[str] = []
        self.keys: list[Any] = []
        two = self

        @function_tool
        def look(x: int) -> str:
            """Look."""
            two.ran.append(f"look {x}")
            execution = get_current_deferred_tool_execution()
            two.keys.append(execution and execution.idempotency_key)
            return f"saw {x}"

        @function_tool(needs_approval=True)
        def pay(amount: int) -> str:
            """Pay."""
            two.ran.append(f"pay {amount}")
            return f"paid {amount}"

        @function_tool
        def fail() -> str:
            """Fail."""
            raise ValueError("no")

        @function_tool
        def ping() -> str:
            """Answer."""
            two.ran.append("ping")
            return "pong"

        self.inner = Agent(
            name="Inner", model=self.inner_model, instructions="in", tools=[look, pay, fail]
        )
        self.outer = Agent(
            name="Outer",
            model=self.outer_model,
            instructions="out",
            tools=[stepwise_agent_tool(self.inner, "inner", "Ask inside.", **options), ping],
        )

    def session(self, **options: Any) -> SteppedSession:
        return session_of(
            self.outer,
            models=[self.outer_model, self.inner_model],
            body_runs=lambda: len(self.ran),
            **options,
        )

    def requests(self) -> list[list[str]]:
        calls = [*self.outer_model.calls, *self.inner_model.calls]
        return [as_text(c.input) for c in calls]


async def both_ways(make: Callable[[], Two], **session: Any) -> tuple[Two, SteppedTurn]:
    """Run a plain run and a session; their requests and answers must be the same."""
    plain, two = make(), make()
    result = await Runner.run(plain.outer, list(USER))
    turn = await two.session(**session).turn("go")
    assert turn.text == result.final_output
    assert two.requests() == plain.requests()
    usage = result.context_wrapper.usage
    assert (turn.usage.model_calls, turn.usage.total_tokens) == (usage.requests, usage.total_tokens)
    return two, turn


def usual() -> Two:
    return Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[
            response(call("look", "n1", x=1), call("look", "n2", x=2)),
            response(call("look", "n3", x=3)),
            response(says("inner done")),
        ],
    )


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


# --- people -------------------------------------------------------------------------------------


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


# --- failures -----------------------------------------------------------------------------------


async def test_a_failing_tool_inside_is_told_to_the_nested_model_as_in_a_plain_run() -> None:
    _, turn = await both_ways(
        lambda: Two(
            outer=[response(ask("p1")), response(says("done"))],
            inner=[response(call("fail", "n1")), response(says("inner done"))],
        )
    )
    assert turn.records["n1"].status is ToolCallStatus.FAILED


async def test_the_limit_of_nested_model_calls_is_told_to_the_outer_model() -> None:
    two = await both_ways_by_requests(
        lambda: Two(
            outer=[response(ask("p1")), response(says("done"))],
            inner=[response(call("look", "n1", x=1)), response(call("look", "n2", x=2))],
            max_turns=2,
        )
    )
    assert two.ran == ["look 1", "look 2"]


async def test_arguments_that_do_not_fit_start_nothing() -> None:
    bad = ask("p1")
    bad.arguments = "{"
    await both_ways_by_requests(
        lambda: Two(outer=[response(bad), response(says("done"))], inner=[])
    )


async def both_ways_by_requests(make: Callable[[], Two]) -> Two:
    plain, two = make(), make()
    await Runner.run(plain.outer, list(USER))
    await two.session().turn("go")
    assert two.requests() == plain.requests()
    return two


def status_error(status: int) -> Exception:
    request = SimpleNamespace(method="POST", url="https://model.invalid")
    answer: Any = SimpleNamespace(status_code=status, headers={}, request=request)
    return openai.APIStatusError("no", response=answer, body=None)


async def test_an_overloaded_provider_is_asked_again_and_not_told_to_the_outer_model() -> None:
    two = Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[ModelStep(error=status_error(503))],
    )
    turn = await two.session().turn("go")
    assert isinstance(turn.outcome, ModelError)
    assert len(two.outer_model.calls) == 1


async def test_a_refused_request_of_a_nested_model_ends_the_turn_once() -> None:
    two = Two(
        outer=[response(ask("p1")), response(says("done"))],
        inner=[ModelStep(error=status_error(400))],
    )
    turn = await two.session().turn("go")
    assert "refused the request (400)" in turn.failure.message


async def test_an_id_that_a_nested_agent_repeats_ends_the_turn_with_words() -> None:
    two = Two(
        outer=[response(ask("p1"), call("ping", "x")), response(says("done"))],
        inner=[response(call("look", "x", x=1))],
    )
    turn = await two.session().turn("go")
    assert turn.failure.error_type == "ToolCallIdRepeated"
    assert "'x'" in turn.failure.message
    assert two.ran == ["ping"]


# --- what is kept -------------------------------------------------------------------------------


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


# --- construction -------------------------------------------------------------------------------


def refused(agent: Agent[Any]) -> str:
    with pytest.raises(AgentDefinitionError) as refusal:
        OpenAIAgentsRunner(agent)
    return str(refusal.value)


def outer_of(*tools: FunctionTool, **more: Any) -> Agent[Any]:
    return Agent(name="Outer", tools=list(tools), **more)


def test_what_cannot_be_opened_up_is_refused_with_its_path() -> None:
    inner = Agent(name="Inner", handoffs=[Agent(name="Other")])
    tool = stepwise_agent_tool(inner, "inner", "Ask.")
    assert refused(outer_of(tool)).startswith(
        "agent 'Outer' > tool 'inner' > agent 'Inner' has handoffs"
    )
    within = Agent(
        name="Inner", tools=[stepwise_agent_tool(Agent(name="Innermost"), "deeper", "Ask.")]
    )
    assert refused(outer_of(stepwise_agent_tool(within, "inner", "Ask."))).startswith(
        "agent 'Outer' > tool 'inner' > agent 'Inner' > tool 'deeper' is a stepwise agent tool"
    )
    timed = stepwise_agent_tool(Agent(name="Inner"), "inner", "Ask.")
    timed.timeout_seconds = 1
    assert refused(outer_of(timed)).startswith("agent 'Outer' > tool 'inner' is a stepwise")
    twice = Agent(name="Inner")
    tools = [stepwise_agent_tool(twice, name, "Ask.") for name in ("a", "b")]
    assert "two places" in refused(outer_of(*tools))
    assert "two places" in refused(
        outer_of(stepwise_agent_tool(twice, "a", "Ask."), handoffs=[twice])
    )
    assert "two agents are named 'Outer'" in refused(
        outer_of(stepwise_agent_tool(Agent(name="Outer"), "a", "Ask."))
    )


def test_policies_may_name_the_tools_of_a_nested_agent() -> None:
    two = usual()
    read = ToolPolicy(ToolEffect.READ)
    OpenAIAgentsRunner(two.outer).validate_tool_policies(dict.fromkeys(("inner", "pay"), read))


async def test_a_nested_hand_made_tool_stays_one_step() -> None:
    """`Agent.as_tool` is left as it is."""
    two = usual()
    two.outer.tools[0] = two.inner.as_tool("inner", "Ask.")
    two.inner.tools = [tool for tool in two.inner.tools if tool.name == "look"]
    session = session_of(two.outer, models=[two.outer_model])
    turn = await session.turn("go")
    assert list(turn.records) == ["p1"]


# --- processes that are killed --------------------------------------------------------------------


class Following(Model):
    """A model without a memory: the outputs it was sent decide what it says."""

    def __init__(self, name: str, *said: Any) -> None:
        self._name = name
        self._said = said

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        items = kwargs["input"] if "input" in kwargs else args[1]
        number = sum(1 for item in items if "output" in item)
        reach(f"model {self._name} {number}")
        return ModelResponse(output=[self._said[number]], usage=spent(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


async def test_a_killed_nested_run_repeats_the_one_call_that_was_running(tmp_path: Path) -> None:
    log = tmp_path / "log"

    @function_tool
    def look(x: int) -> str:
        """Look."""
        with log.open("a") as file:
            file.write(f"look {x}\n")
        reach(f"tool n{x}")
        return f"saw {x}"

    def build() -> OpenAIAgentsRunner:
        inner = Agent(
            name="Inner",
            model=Following(
                "inner", call("look", "n1", x=1), call("look", "n2", x=2), says("inner done")
            ),
            tools=[look],
        )
        outer = Agent(
            name="Outer",
            model=Following("outer", ask("p1"), says("done")),
            tools=[stepwise_agent_tool(inner, "inner", "Ask.")],
        )
        return OpenAIAgentsRunner(outer)

    await asyncio.gather(asyncio.to_thread(int))  # the thread pool is there before a fork
    runner = ForkedRunner(build, {"model inner 1", "tool n2"})
    any_runner: Any = runner
    turn = await SteppedSession(lambda: any_runner).turn("go")
    assert turn.text == "done"
    assert sorted(runner.killed) == ["model inner 1", "tool n2"]
    assert log.read_text().splitlines() == ["look 1", "look 2", "look 2"]
    assert turn.usage.model_calls == 5, "failed attempts are not part of the usage"
