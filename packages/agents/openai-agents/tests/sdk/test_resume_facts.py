"""What resuming stands on: a stopped run, stored as JSON, goes on where it stopped."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    RunContextWrapper,
    RunErrorHandlerInput,
    RunErrorHandlerResult,
    Runner,
    RunState,
    UserError,
    function_tool,
    handoff,
)
from mcp_shop import Shop
from sdk_runs import USER, approved, pending_ids, restored, soft_stopped, stored
from stepped_session import call, outputs, response, says, script


@function_tool(needs_approval=True)
def it(x: int) -> str:
    """Do it."""
    return f"did {x}"


def calls(*numbers: int) -> list[Any]:
    return [call("it", f"c{i}", x=i) for i in numbers]


@pytest.mark.sdk_fact("resume.json-crosses-processes")
async def test_a_state_restored_twice_over_new_agents_goes_on_the_same_way_both_times() -> None:
    def graph(model: Any) -> Agent[Any]:
        billing = Agent[Any](name="Billing", model=model, tools=[it])
        return Agent(name="Triage", model=model, tools=[it], handoffs=[billing])

    state = stored(await Runner.run(graph(script(response(*calls(1)))), USER))
    seen: list[Any] = []
    for _attempt in range(2):
        model = script(response(call("transfer_to_billing", "h1")))
        agent = graph(model)
        result = await soft_stopped(agent, await approved(agent, state))
        assert result.last_agent.name == "Billing"
        seen.append((model.calls[0].input, stored(result)["current_agent"]))
    assert seen[0] == seen[1]
    assert outputs(seen[0][0]) == ["did 1"]


@pytest.mark.sdk_fact("resume.restoring-is-async", "resume.restoring-changes-nothing")
async def test_restoring_is_a_coroutine_and_leaves_its_argument_as_it_was() -> None:
    agent = Agent(name="A", model=script(response(*calls(1))), tools=[it])
    state = stored(await Runner.run(agent, USER))
    before = copy.deepcopy(state)
    await restored(agent, state)
    assert state == before
    assert inspect.iscoroutinefunction(RunState.from_json)
    for method in (RunState.to_json, RunState.approve, RunState.reject):
        assert not inspect.iscoroutinefunction(method)


@pytest.mark.sdk_fact("resume.order-is-kept")
async def test_pending_calls_come_back_in_their_order() -> None:
    agent = Agent(name="A", model=script(response(*calls(3, 1, 2))), tools=[it])
    stopped = await Runner.run(agent, USER)
    assert pending_ids(stopped) == ["c3", "c1", "c2"]
    assert pending_ids(await restored(agent, stopped)) == ["c3", "c1", "c2"]


@pytest.mark.sdk_fact("resume.undecided-calls-wait-again")
async def test_a_run_in_which_nothing_is_decided_waits_again_without_a_model_call() -> None:
    model = script(response(*calls(1, 2)))
    agent = Agent(name="A", model=model, tools=[it])
    again = await Runner.run(agent, await restored(agent, await Runner.run(agent, USER)))
    assert pending_ids(again) == ["c1", "c2"]
    assert len(model.calls) == 1


@pytest.mark.sdk_fact("resume.decided-calls-are-kept")
async def test_outputs_of_decided_calls_are_kept_while_the_others_wait() -> None:
    ran: list[int] = []

    def body(x: int) -> str:
        """Do it."""
        ran.append(x)
        return f"did {x}"

    tool = function_tool(body, name_override="it", needs_approval=True)
    model = script(response(*calls(1, 2)), response(says("done")))
    agent = Agent(name="A", model=model, tools=[tool])
    state = await restored(agent, await Runner.run(agent, USER))
    state.approve(state.get_interruptions()[1])
    half = await Runner.run(agent, state)
    assert (pending_ids(half), len(model.calls)) == (["c1"], 1)
    whole = await Runner.run(agent, await approved(agent, half))
    assert whole.final_output == "done"
    assert sorted(outputs(model.calls[1].input)) == ["did 1", "did 2"]
    assert ran == [2, 1], "a call whose output is kept is not made again"


@pytest.mark.sdk_fact("resume.limit-comes-from-the-state")
async def test_the_turn_limit_of_the_state_counts_over_all_resumes() -> None:
    model = script(response(*calls(1)), response(*calls(2)), response(says("never")))
    agent = Agent(name="A", model=model, tools=[it])
    first = await Runner.run(agent, USER, max_turns=2)
    second = await Runner.run(agent, await approved(agent, first), max_turns=50)
    state = await approved(agent, second)
    with pytest.raises(MaxTurnsExceeded):
        await Runner.run(agent, state, max_turns=50)
    assert len(model.calls) == 2


@pytest.mark.sdk_fact("resume.limit-has-a-handler")
async def test_a_handler_of_the_turn_limit_ends_a_resumed_run_with_its_answer() -> None:
    async def give_up(_input: RunErrorHandlerInput[Any]) -> RunErrorHandlerResult:
        return RunErrorHandlerResult(final_output="gave up")

    agent = Agent(name="A", model=script(response(*calls(1))), tools=[it])
    stopped = await Runner.run(agent, USER, max_turns=1)
    result = await Runner.run(
        agent, await approved(agent, stopped), error_handlers={"max_turns": give_up}
    )
    assert result.final_output == "gave up"


def renamed_agent(model: Any) -> Agent[Any]:
    return Agent(name="New", model=model, tools=[it])


def without_the_tool(model: Any) -> Agent[Any]:
    return Agent(name="A", model=model)


def with_a_handoff_instead(model: Any) -> Agent[Any]:
    target = Agent[Any](name="b", model=model)
    return Agent(name="A", model=model, handoffs=[handoff(target, tool_name_override="it")])


@pytest.mark.sdk_fact("resume.graph-must-fit")
@pytest.mark.parametrize("changed", [renamed_agent, without_the_tool, with_a_handoff_instead])
async def test_a_graph_that_no_longer_fits_the_state_is_refused_before_the_model(
    changed: Any,
) -> None:
    agent = Agent(name="A", model=script(response(*calls(1))), tools=[it])
    state = stored(await Runner.run(agent, USER))
    model = script(response(says("never")))
    with pytest.raises((UserError, ModelBehaviorError)):
        await Runner.run(changed(model), await approved(changed(model), state))
    assert len(model.calls) == 0


class Renamed(Shop):
    """The same server under another name."""

    @property
    def name(self) -> str:
        return "store"


def of_the_shop(shop: Shop, model: Any) -> Agent[Any]:
    return Agent(name="A", model=model, mcp_servers=[shop])


@pytest.mark.sdk_fact("resume.mcp-listing-must-fit")
@pytest.mark.parametrize("change", ["none", "renamed server", "tool gone"])
async def test_a_server_that_no_longer_fits_the_state_is_refused_before_the_model(
    change: str,
) -> None:
    before = of_the_shop(
        Shop(require_approval="always"), script(response(call("order", "c1", item="a")))
    )
    state = stored(await Runner.run(before, USER))
    shop = (Renamed if change == "renamed server" else Shop)(require_approval="always")
    if change == "tool gone":
        shop.gone.add("order")
    model = script(response(says("done")))
    after = of_the_shop(shop, model)
    if change == "none":
        assert (await Runner.run(after, await approved(after, state))).final_output == "done"
        return
    with pytest.raises((UserError, ModelBehaviorError)):
        await Runner.run(after, await approved(after, state))
    assert len(model.calls) == 0
    assert shop.runs == []


@pytest.mark.sdk_fact("resume.context-override-takes-over")
async def test_a_restored_state_uses_the_context_wrapper_it_is_given() -> None:
    seen: list[Any] = []

    def look(context: RunContextWrapper[Any]) -> str:
        """Look."""
        seen.append(context.context)
        return ""

    model = script(response(call("look", "c1"), tokens=15), response(says("done"), tokens=20))
    tool = function_tool(look, needs_approval=True)
    agent = Agent[Any](name="A", model=model, tools=[tool])
    stopped = await Runner.run(agent, USER, context={"user": "old"})
    context = RunContextWrapper[Any]({"user": "new"})
    state = await restored(agent, stopped, context)
    assert context.usage.total_tokens == 15, "the usage of the state goes into the wrapper"
    context.approve_tool(state.get_interruptions()[0])
    result = await Runner.run(agent, state)
    assert seen == [{"user": "new"}]
    assert result.context_wrapper is context
    assert context.usage.total_tokens == 35

    class Own(RunContextWrapper[Any]):
        """A wrapper of a class of its own."""

    with pytest.raises(UserError):
        await restored(agent, stopped, Own(None))


@pytest.mark.sdk_fact("resume.ends-without-a-model-call")
async def test_a_resumed_run_may_end_on_a_tool_without_a_model_call() -> None:
    model = script(response(*calls(1)))
    agent = Agent(name="A", model=model, tools=[it], tool_use_behavior="stop_on_first_tool")
    result = await soft_stopped(agent, await approved(agent, await Runner.run(agent, USER)))
    assert result.final_output == "did 1"
    assert len(model.calls) == 1


@pytest.mark.sdk_fact("resume.unanswered-calls-leave-the-input")
async def test_a_resumed_run_drops_unanswered_calls_of_its_input_and_a_fresh_one_does_not() -> None:
    open_call = {"type": "function_call", "call_id": "old", "name": "it", "arguments": "{}"}
    given: list[Any] = [open_call, *USER]
    model = script(response(*calls(1)), response(says("done")))
    agent = Agent(name="A", model=model, tools=[it])
    stopped = await Runner.run(agent, given)
    await Runner.run(agent, await approved(agent, stopped))
    ids = [[i["call_id"] for i in c.input if i.get("call_id")] for c in model.calls]
    assert ids == [["old"], ["c1", "c1"]]
