"""Cases about calls that wait: approvals, and what changes while they do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agents import (
    Agent,
    Runner,
    function_tool,
)
from stepped_session import (
    SteppedSession,
    call,
    outputs,
    response,
    says,
    script,
    session_of,
)

from dex_agents import ToolCallStatus, ToolEffect, ToolPolicy
from dex_agents_openai_agents import OpenAIAgentsRunner
from dex_agents_openai_agents._stored.run_state import decode_run, encode_run

# --- Cases 10 and 14 ----------------------------------------------------------------------------


async def test_case_10_eighty_parallel_calls_end_and_keep_the_models_order() -> None:
    @function_tool
    async def ping(x: int) -> str:
        """Answer."""
        return f"pong {x}"

    model = script(
        response(*(call("ping", f"c{i}", x=i) for i in range(80))), response(says("done"))
    )
    turn = await session_of(Agent(name="A", model=model, tools=[ping])).turn("go")
    assert turn.text == "done"
    assert outputs(model.calls[1].input) == [f"pong {i}" for i in range(80)]


@pytest.mark.sdk_fact("gate.agent-start-ends-the-resolving")
async def test_case_14_a_tool_disabled_after_its_call_still_gives_its_result() -> None:
    enabled = [True]

    @function_tool(is_enabled=lambda _context, _agent: enabled[0])
    def it() -> str:
        """Do it."""
        enabled[0] = False
        return "did it"

    model = script(response(call("it", "c1")), response(says("done")))
    turn = await session_of(Agent(name="A", model=model, tools=[it])).turn("go")
    assert turn.text == "done"
    assert outputs(model.calls[1].input) == ["did it"]
    assert [[t.name for t in c.tools] for c in model.calls] == [["it"], []]


async def test_case_14_a_tool_disabled_while_an_approval_waits_still_runs() -> None:
    enabled = [True]

    @function_tool(is_enabled=lambda _context, _agent: enabled[0])
    def it() -> str:
        """Do it."""
        return "did it"

    def answer(_record: Any) -> bool:
        enabled[0] = False
        return True

    model = script(response(call("it", "c1")), response(says("done")))
    turn = await session_of(
        Agent(name="A", model=model, tools=[it]),
        default_effect=ToolEffect.UNCLASSIFIED,
        answer=answer,
    ).turn("go")
    assert turn.text == "done"
    assert outputs(model.calls[1].input) == ["did it"]


# --- Case 15: a deploy while a session waits ----------------------------------------------------


def deploying_session(before: Agent[Any], after: Agent[Any], model: Any) -> SteppedSession:
    current = [before]

    def deploy(_record: Any) -> bool:
        current[0] = after
        return True

    return SteppedSession(
        lambda: OpenAIAgentsRunner(current[0]),
        [model],
        default_effect=ToolEffect.UNCLASSIFIED,
        answer=deploy,
    )


@function_tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def test_case_15_a_renamed_agent_fails_the_turn_by_name_and_the_session_goes_on() -> None:
    model = script(response(call("pay", "c1", amount=1)), response(says("still here")))
    session = deploying_session(
        Agent(name="Old", model=model, tools=[pay]),
        Agent(name="New", model=model, tools=[pay]),
        model,
    )
    turn = await session.turn("go")
    assert turn.failure.error_type == "AgentMissing"
    assert "'Old'" in turn.failure.message
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert "'Old'" in (turn.records["c1"].error or "")
    assert (await session.turn("hello?")).text == "still here"
    assert "pay" in model.calls[-1].input[-2]["content"], "the note tells what became of the call"


@pytest.mark.parametrize("change", ["removed", "renamed"])
async def test_case_15_a_missing_tool_fails_the_turn_by_name_and_the_session_goes_on(
    change: str,
) -> None:
    @function_tool
    def pay_now(amount: int) -> str:
        """Pay."""
        return "?"

    model = script(response(call("pay", "c1", amount=1)), response(says("still here")))
    after = Agent[Any](name="A", model=model, tools=[] if change == "removed" else [pay_now])
    session = deploying_session(Agent(name="A", model=model, tools=[pay]), after, model)
    turn = await session.turn("go")
    assert turn.failure.error_type == "ToolMissing"
    assert "'pay'" in turn.failure.message
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert (await session.turn("hello?")).text == "still here"


async def test_case_15_old_arguments_are_checked_against_a_changed_schema() -> None:
    ran: list[str] = []

    @function_tool(name_override="pay")
    def pay_in(amount: int, currency: str) -> str:
        """Pay."""
        ran.append(currency)
        return "paid"

    model = script(response(call("pay", "c1", amount=1)), response(says("done")))
    session = deploying_session(
        Agent(name="A", model=model, tools=[pay]),
        Agent(name="A", model=model, tools=[pay_in]),
        model,
    )
    turn = await session.turn("go")
    assert turn.text == "done"
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert "Invalid JSON input for tool pay" in (turn.records["c1"].error or "")
    assert ran == []


@pytest.mark.sdk_fact("state.items-replay-as-a-fresh-run")
async def test_case_15_a_state_the_framework_refuses_goes_on_from_the_items() -> None:
    @function_tool
    def ping(x: str) -> str:
        """Answer."""
        return f"pong {x}"

    def from_the_future(state: str, records: Any) -> str:
        run = decode_run(state, records)
        return encode_run(replace(run, state={**run.state, "$schemaVersion": "99.0"}), records)

    steps = [
        response(call("ping", "c1", x="1"), call("ping", "c2", x="2")),
        response(call("ping", "c3", x="3")),
        response(call("transfer_to_b", "h1")),
        response(call("ping", "c4", x="4")),
        response(says("done", "m1")),
        response(says("next", "m2")),
    ]
    plain_model, model = script(*steps), script(*steps)

    def agent(model: Any) -> Agent[Any]:
        b = Agent(name="b", model=model, tools=[ping])
        return Agent(name="a", model=model, tools=[ping], handoffs=[b])

    plain = await Runner.run(agent(plain_model), [{"role": "user", "content": "go"}])
    await Runner.run(
        plain.last_agent, [*plain.to_input_list(), {"role": "user", "content": "more"}]
    )
    session = session_of(agent(model), before_resume=from_the_future)
    turn = await session.turn("go")
    assert turn.text == "done"
    await session.turn("more")
    assert [c.input for c in model.calls] == [c.input for c in plain_model.calls]
    limited = session_of(
        agent(script(*steps)), before_resume=from_the_future, max_turns=2, models=[]
    )
    assert (await limited.turn("go")).failure.error_type == "MaxTurnsExceeded"


# --- Cases 18 and 19: approvals -----------------------------------------------------------------


async def test_case_18_three_calls_of_one_tool_keep_their_own_answers() -> None:
    refunds: list[int] = []

    @function_tool
    def refund(order: int) -> str:
        """Refund."""
        refunds.append(order)
        return f"refunded {order}"

    model = script(
        response(*(call("refund", f"c{i}", order=6 + i) for i in (1, 2, 3))), response(says("done"))
    )
    turn = await session_of(
        Agent(name="A", model=model, tools=[refund]),
        default_effect=ToolEffect.NON_IDEMPOTENT_WRITE,
        answer=lambda record: "too much" if record.tool_call_id == "c2" else True,
        body_runs=lambda: len(refunds),
    ).turn("go")
    assert turn.text == "done"
    assert sorted(refunds) == [7, 9]
    assert outputs(model.calls[1].input) == ["refunded 7", "too much", "refunded 9"]


async def test_case_19_only_the_calls_that_need_it_ask() -> None:
    @function_tool
    def search() -> str:
        """Search."""
        return "found"

    @function_tool
    def refund(order: int) -> str:
        """Refund."""
        return f"refunded {order}"

    model = script(
        response(
            call("search", "c1"), call("refund", "c2", order=1), call("refund", "c3", order=2)
        ),
        response(says("done")),
    )
    session = session_of(
        Agent(name="A", model=model, tools=[search, refund]),
        policies={
            "search": ToolPolicy(ToolEffect.READ),
            "refund": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
        },
    )
    await session.turn("go")
    assert session.asked == ["c2", "c3"]


async def test_a_tool_that_needs_approval_asks_whatever_its_policy() -> None:
    asked_with: list[Any] = []

    async def only_large(_context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        asked_with.append((arguments, call_id))
        return arguments["amount"] > 100

    async def broken(_context: Any, _arguments: dict[str, Any], _call_id: str) -> bool:
        raise RuntimeError("rule is broken")

    @function_tool(needs_approval=only_large)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    @function_tool(needs_approval=True)
    def always() -> str:
        """Always ask."""
        return "ok"

    @function_tool(needs_approval=only_large)
    def with_default(amount: int, note: str = "none") -> str:
        """Pay."""
        return "paid"

    @function_tool(needs_approval=broken)
    def broken_rule() -> str:
        """Ask."""
        return "ok"

    model = script(
        response(
            call("pay", "small", amount=1),
            call("pay", "large", amount=1000),
            call("always", "always"),
            call("with_default", "default_filled", amount=1),
            call("broken_rule", "broken"),
            call("pay", "invalid", amount="x"),
        ),
        response(says("done")),
    )
    session = session_of(
        Agent(
            name="A",
            model=model,
            tools=[pay, always, with_default, broken_rule],
        )
    )
    await session.turn("go")
    assert session.asked == ["large", "always", "default_filled", "broken", "invalid"]
    assert asked_with == [({"amount": 1}, "small"), ({"amount": 1000}, "large")]


async def test_a_policy_without_approval_does_not_lift_the_tools_own_rule() -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    model = script(response(call("pay", "c1")), response(says("done")))
    session = session_of(
        Agent(name="A", model=model, tools=[pay]),
        policies={"pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)},
    )
    await session.turn("go")
    assert session.asked == ["c1"]
