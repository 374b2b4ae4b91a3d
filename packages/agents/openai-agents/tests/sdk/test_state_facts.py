"""What is in the state of a stopped run, and what of it may be taken out."""

from __future__ import annotations

import json
import logging
import zlib
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunContextWrapper, Runner, RunState, UserError, function_tool, handoff
from agents.extensions.handoff_filters import remove_all_tools
from sdk_runs import USER, approved, restored, soft_stopped, stored
from stepped_session import call, outputs, response, says, script

#: States with one pending call of `pay`, as older releases of the SDK wrote them.
OLDER = {
    path.stem: path.read_text(encoding="utf-8")
    for path in Path(__file__).with_name("older_states").glob("*.json")
}


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def pays(*call_ids: str) -> Any:
    return response(*(call("pay", call_id, amount=7) for call_id in call_ids))


async def state_of(*call_ids: str, history: list[Any] = USER) -> dict[str, Any]:
    agent = Agent(name="A", model=script(pays(*call_ids)), tools=[pay])
    return stored(await Runner.run(agent, history))


def size(state: dict[str, Any]) -> int:
    return len(json.dumps(state))


@pytest.mark.sdk_fact("state.repeats-each-pending-call", "state.compresses-well")
async def test_each_pending_call_stands_many_times_in_the_state_which_compresses_well() -> None:
    one, three = await state_of("call-1"), await state_of("call-1", "call-2", "call-3")
    assert json.dumps(one).count('"call-1"') >= 5
    assert size(three) - size(one) > 2_000, "two more calls with 12 bytes of arguments"
    assert len(zlib.compress(json.dumps(three).encode())) * 4 < size(three)


@pytest.mark.sdk_fact("state.holds-the-whole-input")
async def test_the_state_is_as_large_as_the_history_but_for_its_original_input() -> None:
    history = [{"role": "user", "content": f"{i} {'x' * 1000}"} for i in range(20)]
    short, long = await state_of("c1"), await state_of("c1", history=history)
    assert size(long) - size(short) > 20_000
    for state in (short, long):
        del state["original_input"]
    assert abs(size(long) - size(short)) < 100


@pytest.mark.sdk_fact("state.grows-by-the-rounds-of-the-turn")
async def test_without_its_original_input_the_state_grows_with_the_rounds_of_the_turn() -> None:
    model = script(pays("c1"), pays("c2"), pays("c3"))
    agent = Agent(name="A", model=model, tools=[pay])
    result = await Runner.run(agent, USER)
    sizes = [size(stored(result))]
    for _round in range(2):
        result = await Runner.run(agent, await approved(agent, result))
        sizes.append(size(stored(result)))
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    assert 0 < first < 8_000
    assert abs(second - first) < first / 4, "every round of the same calls adds the same"


@pytest.mark.sdk_fact("state.original-input-can-be-put-back")
async def test_a_state_takes_its_original_input_back_before_it_is_restored() -> None:
    model = script(pays("c1"), response(says("done")))
    agent = Agent(name="A", model=model, tools=[pay])
    state = stored(await Runner.run(agent, USER))
    state["original_input"] = [{"role": "user", "content": "put back"}]
    await Runner.run(agent, await approved(agent, state))
    assert model.calls[1].input[0]["content"] == "put back"


@pytest.mark.sdk_fact("state.input-is-normalised")
async def test_serialising_rewrites_short_assistant_messages_the_same_way_every_time() -> None:
    history: list[Any] = [*USER, {"role": "assistant", "content": "hello"}, *USER]
    agent = Agent(name="A", model=script(pays("c1")), tools=[pay])
    state = stored(await Runner.run(agent, history))
    assert state["original_input"] != history
    blank = RunState(
        context=RunContextWrapper[Any](None), original_input=history, starting_agent=agent
    )
    assert state["original_input"] == blank.to_json()["original_input"]


@pytest.mark.sdk_fact("state.handoffs-rewrite-the-input")
@pytest.mark.parametrize("options", [{"nest_handoff_history": True}, {"input_filter": "all tools"}])
async def test_a_handoff_that_rewrites_history_changes_the_original_input_of_the_state(
    options: dict[str, Any],
) -> None:
    if "input_filter" in options:
        options = {"input_filter": lambda data: remove_all_tools(data).clone(input_history=())}
    model = script(response(call("transfer_to_b", "h1")))
    b = Agent[Any](name="b", model=model)
    agent = Agent[Any](name="a", model=model, handoffs=[handoff(b, **options)])
    state = stored(await soft_stopped(agent, USER))
    assert state["original_input"] != USER


@pytest.mark.sdk_fact("state.mapping-context-is-written-verbatim")
async def test_no_serializer_is_asked_about_a_mapping() -> None:
    def serializer(_context: Any) -> dict[str, Any]:
        raise AssertionError("asked")

    agent = Agent[Any](name="A", model=script(pays("c1")), tools=[pay])
    result = await Runner.run(agent, USER, context={"password": "123"})
    state = result.to_state().to_json(context_serializer=serializer)
    assert state["context"]["context"] == {"password": "123"}


class Custom:
    """A context that is no mapping."""


@pytest.mark.sdk_fact("state.other-contexts-need-a-serializer")
@pytest.mark.parametrize("is_serialized", [True, False])
async def test_a_context_that_is_no_mapping_warns_unless_it_is_serialized(
    is_serialized: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent[Any](name="A", model=script(pays("c1")), tools=[pay])
    result = await Runner.run(agent, USER, context=Custom())
    with caplog.at_level(logging.WARNING):
        result.to_state().to_json(
            context_serializer=(lambda _context: {}) if is_serialized else None
        )
    assert bool(caplog.records) != is_serialized


@pytest.mark.sdk_fact("state.goes-on-without-its-context")
async def test_a_state_whose_context_was_cut_out_keeps_usage_and_takes_another_context() -> None:
    agent = Agent[Any](name="A", model=script(pays("c1"), response(says("done"))), tools=[pay])
    state = stored(await Runner.run(agent, USER, context={"password": "123"}))
    blank = RunState(
        context=RunContextWrapper[Any](None), original_input=USER, starting_agent=agent
    ).to_json()
    for name in ("context", "context_meta"):
        state["context"][name] = blank["context"][name]
    assert "123" not in json.dumps(state)
    context = RunContextWrapper[Any]({"user": "new"})
    restored_state = await restored(agent, state, context)
    assert context.context == {"user": "new"}
    assert context.usage.total_tokens == 15
    context.approve_tool(restored_state.get_interruptions()[0])
    assert (await Runner.run(agent, restored_state)).final_output == "done"


@pytest.mark.sdk_fact("state.unknown-schema-is-refused")
@pytest.mark.parametrize("version", ["1.99", "2.0", "99.0"])
async def test_a_state_of_an_unknown_schema_is_refused_outright(version: str) -> None:
    agent = Agent(name="A", tools=[pay])
    with pytest.raises(UserError, match="schema"):
        await restored(agent, {**await state_of("c1"), "$schemaVersion": version})


@pytest.mark.sdk_fact("state.older-schemas-are-read")
@pytest.mark.parametrize("release", sorted(OLDER), ids=str)
async def test_a_state_that_an_older_release_wrote_goes_on(release: str) -> None:
    state = json.loads(OLDER[release])
    model = script(response(says("done")))
    agent = Agent(name="A", model=model, tools=[pay])
    assert state["$schemaVersion"] < stored_schema(agent)
    result = await Runner.run(agent, await approved(agent, state))
    assert result.final_output == "done"
    assert outputs(model.calls[0].input) == ["paid 7"]


def stored_schema(agent: Agent[Any]) -> str:
    blank = RunState(context=RunContextWrapper[Any](None), original_input="", starting_agent=agent)
    return blank.to_json()["$schemaVersion"]


@pytest.mark.sdk_fact("state.items-replay-as-a-fresh-run")
async def test_the_items_of_a_stopped_run_and_recorded_outputs_go_on_as_a_fresh_run() -> None:
    model = script(pays("c1"), response(says("done")), response(says("done")))
    agent = Agent(name="A", model=model, tools=[pay])
    stopped = await Runner.run(agent, USER)
    items = [i.to_input_item() for i in stopped.new_items if i.type != "tool_approval_item"]
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "paid 7"}
    await Runner.run(agent, await approved(agent, stopped))
    await Runner.run(agent, [*USER, *items, output])
    resumed, fresh = model.calls[1].input, model.calls[2].input
    assert fresh == resumed
