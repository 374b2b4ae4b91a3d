"""Cases about history, handoffs and ids: what the model reads over many turns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    HandoffInputData,
    ModelSettings,
    ReasoningItem,
    RunConfig,
    Runner,
    ToolCallItem,
    function_tool,
    handoff,
    output_guardrail,
)
from agents.extensions.handoff_filters import remove_all_tools
from agents.testing import ScriptedModel
from openai.types.responses import ResponseReasoningItem
from openai.types.responses.response_reasoning_item import Summary
from stepped_session import (
    SteppedSession,
    as_text,
    assert_every_call_has_one_output,
    call,
    response,
    says,
    script,
)

from dex_agents import ToolEffect, ToolPolicy, TurnCompleted
from dex_agents_openai_agents import OpenAIAgentsRunner


@function_tool
def ping(x: str) -> str:
    """Answer."""
    return f"pong {x}"


def keep_last_user_message(data: HandoffInputData) -> HandoffInputData:
    history = data.input_history if isinstance(data.input_history, tuple) else ()
    return data.clone(
        input_history=tuple(history[-1:]), pre_handoff_items=(), new_items=tuple(data.new_items)
    )


@pytest.mark.sdk_fact("handoff.new-items-hold-the-turn")
@pytest.mark.parametrize("variant", ["nested history", "input filter", "remove_all_tools"])
async def test_case_1_a_rewritten_history_loses_no_item_of_the_turn(variant: str) -> None:
    model = script(
        response(says("a1", "m1")),
        response(says("a2", "m2")),
        response(call("ping", "c0", x="0")),
        response(call("transfer_to_b", "h1")),
        response(says("hello", "m3")),
        response(says("bye", "m4")),
    )

    def runner() -> OpenAIAgentsRunner:
        b = Agent(name="b", model=model)
        to_b = (
            handoff(b, nest_handoff_history=True)
            if variant == "nested history"
            else handoff(
                b,
                input_filter=keep_last_user_message
                if variant == "input filter"
                else remove_all_tools,
            )
        )
        return OpenAIAgentsRunner(Agent(name="a", model=model, tools=[ping], handoffs=[to_b]))

    session = SteppedSession(runner, [model])
    await session.turn("u1")
    await session.turn("u2")
    before = [m.framework_item for m in session.messages]
    turn = await session.turn("u3")
    assert turn.kinds == ["ToolCallsRequested", "TurnContinues", "TurnCompleted"]
    assert [m.framework_item for m in session.messages][: len(before)] == before
    await session.turn("u4")
    last_input = model.calls[-1].input
    assert_every_call_has_one_output(last_input)
    assert [i["content"] for i in last_input if i.get("role") == "user"] == ["u1", "u2", "u3", "u4"]
    # `remove_all_tools` takes the handoff itself out of the history, in a plain run too.
    kept = ["c0"] if variant == "remove_all_tools" else ["c0", "h1"]
    assert [i["call_id"] for i in last_input if i.get("type") == "function_call"] == kept
    assert len(turn.messages) == 2 * len(kept) + 1


def drop_reasoning(data: HandoffInputData) -> HandoffInputData:
    kept = tuple(item for item in data.new_items if not isinstance(item, ReasoningItem))
    return data.clone(new_items=kept)


def give_as_input_items(data: HandoffInputData) -> HandoffInputData:
    return data.clone(pre_handoff_items=(), input_items=data.new_items)


@pytest.mark.parametrize(
    "chosen", [keep_last_user_message, remove_all_tools, drop_reasoning, give_as_input_items]
)
@pytest.mark.parametrize("is_global", [False, True], ids=["of the handoff", "of the run"])
async def test_a_handoff_filter_sees_the_calls_beside_the_handoff_as_in_a_plain_run(
    chosen: Callable[[HandoffInputData], HandoffInputData], is_global: bool
) -> None:
    def make() -> tuple[ScriptedModel, Agent[Any]]:
        model = script(
            response(call("ping", "c0", x="0")),
            response(
                reasoning("rs", "sealed"), call("ping", "c1", x="1"), call("transfer_to_b", "h1")
            ),
            response(call("ping", "c2", x="2")),
            response(says("done")),
            response(says("and again")),
        )
        b = Agent(name="b", model=model, tools=[ping])
        to_b = handoff(b, input_filter=None if is_global else chosen)
        return model, Agent(name="a", model=model, tools=[ping], handoffs=[to_b])

    config = RunConfig(handoff_input_filter=chosen if is_global else None)
    plain, agent = make()
    first = await Runner.run(agent, [{"role": "user", "content": "go"}], run_config=config)
    again: list[Any] = [*first.to_input_list(), {"role": "user", "content": "go on"}]
    await Runner.run(first.last_agent, again, run_config=config)
    model, agent = make()
    session = SteppedSession(lambda: OpenAIAgentsRunner(agent, run_config=config), [model])
    for text in ("go", "go on"):
        turn = await session.turn(text)
        assert isinstance(turn.outcome, TurnCompleted), turn.outcome
    for mine, theirs in zip(model.calls, plain.calls, strict=True):
        assert_every_call_has_one_output(mine.input)
        assert as_text(mine.input) == as_text(theirs.input)


async def test_a_handoff_filter_that_rewrites_a_call_beside_the_handoff_does_not_end_the_turn() -> (
    None
):
    def other_arguments(data: HandoffInputData) -> HandoffInputData:
        items = copy.deepcopy(data.new_items)
        for item in items:
            if isinstance(item, ToolCallItem):
                item.raw_item = call("ping", "c0", x="taken out")
        return data.clone(new_items=items)

    model = script(
        response(call("ping", "c0", x="0"), call("transfer_to_b", "h1")),
        response(call("ping", "c1", x="1")),
        response(says("done")),
    )
    b = Agent(name="b", model=model, tools=[ping])
    to_b = handoff(b, input_filter=other_arguments)
    agent = Agent(name="a", model=model, tools=[ping], handoffs=[to_b])
    turn = await SteppedSession(lambda: OpenAIAgentsRunner(agent), [model]).turn("go")
    assert turn.text == "done", turn.outcome
    assert "taken out" in str(model.calls[-1].input)
    assert_every_call_has_one_output(model.calls[-1].input)


async def test_case_5_a_call_id_used_again_in_a_later_turn_keeps_both_calls_in_place() -> None:
    model = script(
        response(call("ping", "c1", x="1")),
        response(says("ok", "m1")),
        response(call("ping", "c1", x="2")),
        response(says("done", "m2")),
        response(says("third", "m3")),
    )
    session = SteppedSession(
        lambda: OpenAIAgentsRunner(Agent(name="A", model=model, tools=[ping])), [model]
    )
    await session.turn("one")
    await session.turn("two")
    shape = [
        item.get("content") or item.get("arguments") or item.get("output")
        for item in model.calls[3].input
        if item.get("role") != "assistant"
    ]
    assert shape == ["one", '{"x":"1"}', "pong 1", "two", '{"x":"2"}', "pong 2"]
    assert_every_call_has_one_output(model.calls[3].input)
    ids = [i["call_id"] for i in model.calls[3].input if i.get("type") == "function_call"]
    assert ids[1] == "c1"
    assert ids[0] != "c1"
    await session.turn("three")
    later = [i["call_id"] for i in model.calls[4].input if i.get("type") == "function_call"]
    assert later == ids, "renamed ids stay the same, so that the provider's cache hits"


@pytest.mark.sdk_fact("ids.one-id-one-call")
@pytest.mark.parametrize("same_response", [True, False])
async def test_case_6_one_id_for_two_calls_fails_the_turn_once_and_names_the_id(
    same_response: bool,
) -> None:
    first, second = call("ping", "c1", x="1"), call("ping", "c1", x="2")
    steps = [response(first, second)] if same_response else [response(first), response(second)]
    model = script(*steps)
    session = SteppedSession(
        lambda: OpenAIAgentsRunner(Agent(name="A", model=model, tools=[ping])), [model]
    )
    turn = await session.turn("go")
    assert "'c1'" in turn.failure.message
    assert turn.failure.error_type == "ModelBehaviorError"
    assert len(model.calls) == len(steps)


@pytest.mark.parametrize(
    ("next_turn_agent", "expected"),
    [("last", ["triage", "rental", "rental"]), ("starting", ["triage", "rental", "triage"])],
)
async def test_case_7_the_next_message_goes_to_the_agent_that_asked(
    next_turn_agent: Any, expected: list[str]
) -> None:
    model = script(
        response(call("transfer_to_rental", "h1")),
        response(says("Where?", "m1")),
        response(says("booked", "m2")),
    )

    def runner() -> OpenAIAgentsRunner:
        rental = Agent(name="Rental", model=model, instructions="rental")
        triage = Agent(name="Triage", model=model, instructions="triage", handoffs=[rental])
        return OpenAIAgentsRunner(triage, next_turn_agent=next_turn_agent)

    session = SteppedSession(runner, [model])
    await session.turn("a car please")
    await session.turn("San Francisco")
    assert [c.system_instructions for c in model.calls] == expected


async def test_case_7_the_first_agent_takes_over_from_one_that_a_deploy_removed() -> None:
    model = script(
        response(call("transfer_to_rental", "h1")), response(says("Where?")), response(says("ok"))
    )
    has_rental = True

    def runner() -> OpenAIAgentsRunner:
        rental = Agent(name="Rental", model=model, instructions="rental")
        handoffs: list[Any] = [rental] if has_rental else []
        return OpenAIAgentsRunner(
            Agent(name="Triage", model=model, instructions="triage", handoffs=handoffs)
        )

    session = SteppedSession(runner, [model])
    await session.turn("a car please")
    has_rental = False
    turn = await session.turn("San Francisco")
    assert turn.text == "ok"
    assert model.calls[-1].system_instructions == "triage"


def reasoning(item_id: str, encrypted: str) -> ResponseReasoningItem:
    return ResponseReasoningItem(
        id=item_id,
        type="reasoning",
        summary=[Summary(type="summary_text", text=f"thought {item_id}")],
        encrypted_content=encrypted,
    )


@pytest.mark.sdk_fact("item.reasoning-keeps-id-and-secret")
@pytest.mark.parametrize("policy", [None, "omit"])
async def test_case_24_reasoning_stays_before_its_call_with_its_encrypted_content(
    policy: Any,
) -> None:
    steps = [
        response(reasoning("rs_1", "e1"), call("ping", "c1", x="1")),
        response(reasoning("rs_2", "e2"), says("done", "m1")),
        response(says("again", "m2")),
    ]
    plain_model = script(*steps)
    config = RunConfig(reasoning_item_id_policy=policy)
    plain = await Runner.run(
        Agent(name="A", model=plain_model, tools=[ping], model_settings=ModelSettings(store=False)),
        [{"role": "user", "content": "go"}],
        run_config=config,
    )
    await Runner.run(
        plain.last_agent,
        [*plain.to_input_list(), {"role": "user", "content": "more"}],
        run_config=config,
    )
    model = script(*steps)
    session = SteppedSession(
        lambda: OpenAIAgentsRunner(
            Agent(name="A", model=model, tools=[ping], model_settings=ModelSettings(store=False)),
            run_config=config,
        ),
        [model],
    )
    await session.turn("go")
    await session.turn("more")
    assert [c.input for c in model.calls] == [c.input for c in plain_model.calls]
    replayed = [i for i in model.calls[-1].input if i.get("type") == "reasoning"]
    assert [i["encrypted_content"] for i in replayed] == ["e1", "e2"]
    assert all(("id" in item) == (policy is None) for item in replayed)
    assert session.live_text("reasoning_delta") == "thought rs_1thought rs_2"


async def broken_turn_by_output_guardrail(model: ScriptedModel) -> SteppedSession:
    @output_guardrail
    async def never(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, tripwire_triggered=output == "bad")

    model.extend([response(call("ping", "c1", x="1")), response(says("bad"))])
    agent = Agent(name="A", model=model, tools=[ping], output_guardrails=[never])
    session = SteppedSession(lambda: OpenAIAgentsRunner(agent), [model])
    turn = await session.turn("go")
    assert turn.failure.error_type == "OutputGuardrailTripwireTriggered"
    return session


async def broken_turn_by_max_turns(model: ScriptedModel) -> SteppedSession:
    model.extend([response(call("ping", "c1", x="1"))])
    agent = Agent(name="A", model=model, tools=[ping])
    session = SteppedSession(lambda: OpenAIAgentsRunner(agent, max_turns=1), [model])
    turn = await session.turn("go")
    assert turn.failure.error_type == "MaxTurnsExceeded"
    return session


async def rejected_call(model: ScriptedModel) -> SteppedSession:
    model.extend([response(call("ping", "c1", x="1")), response(says("fine"))])
    agent = Agent(name="A", model=model, tools=[ping])
    session = SteppedSession(
        lambda: OpenAIAgentsRunner(agent),
        [model],
        policies={"ping": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)},
        answer=lambda _record: "expired",
    )
    assert (await session.turn("go")).text == "fine"
    return session


@pytest.mark.parametrize(
    "first_turn", [broken_turn_by_output_guardrail, broken_turn_by_max_turns, rejected_call]
)
async def test_case_25_every_call_in_a_later_input_has_exactly_one_output(
    first_turn: Callable[[ScriptedModel], Any],
) -> None:
    model = script()
    session = await first_turn(model)
    model.enqueue(response(says("next", "m9")))
    turn = await session.turn("and now?")
    assert turn.text == "next"
    assert_every_call_has_one_output(model.calls[-1].input)


async def test_case_20_the_turn_after_a_failed_one_reads_what_already_ran() -> None:
    model = script(
        response(call("ping", "c1", x="1")), RuntimeError("down"), response(says("I see"))
    )
    agent = Agent(name="A", model=model, tools=[ping])
    session = SteppedSession(lambda: OpenAIAgentsRunner(agent), [model])
    turn = await session.turn("go")
    assert isinstance(turn.outcome, RuntimeError)
    await session.turn("and now?")
    note = model.calls[-1].input[-2]["content"]
    assert "ping" in note
    assert "succeeded" in note


async def test_case_29_cyclic_handoffs_gate_every_visit() -> None:
    model = script(
        response(call("transfer_to_b", "h1")),
        response(call("ping", "c1", x="1")),
        response(call("transfer_to_a", "h2")),
        response(call("ping", "c2", x="2")),
        response(call("transfer_to_c", "h3")),
        response(says("end")),
    )
    runs: list[str] = []

    @function_tool(name_override="ping")
    def counted(x: str) -> str:
        """Answer."""
        runs.append(x)
        return x

    a = Agent(name="a", model=model, tools=[counted])
    b = Agent(name="b", model=model, tools=[counted])
    c = Agent(name="c", model=model, tools=[counted])
    a.handoffs = [b, handoff(c)]
    b.handoffs = [a, handoff(c)]
    session = SteppedSession(lambda: OpenAIAgentsRunner(a), [model], body_runs=lambda: len(runs))
    turn = await session.turn("go")
    assert turn.text == "end"
    assert runs == ["1", "2"]
    assert session.messages[-1].agent_name == "c"


async def test_case_30_a_failing_model_call_does_not_repeat_the_handoff_before_it() -> None:
    handoffs: list[str] = []
    model = script(response(call("transfer_to_b", "h1")), RuntimeError("down"), response(says("b")))
    b = Agent(name="b", model=model)
    to_b = handoff(b, on_handoff=lambda _context: handoffs.append("x"))
    a = Agent(name="a", model=model, handoffs=[to_b])
    session = SteppedSession(lambda: OpenAIAgentsRunner(a), [model])
    turn = await session.turn("go")
    assert isinstance(turn.outcome, RuntimeError)
    assert turn.kinds == ["TurnContinues"], "the handoff is committed before the next call"
    assert handoffs == ["x"]


async def test_case_32_a_damaged_message_fails_the_turn_clearly() -> None:
    model = script(response(says("hello")))
    agent = Agent(name="A", model=model)
    session = SteppedSession(lambda: OpenAIAgentsRunner(agent), [model])
    await session.turn("hi")
    for damaged in ('{"v":1,"item', '{"v":99,"item":{}}', '{"v":1}', "[]"):
        kept = session.messages[1]
        session.messages[1] = replace(kept, framework_item=damaged)
        turn = await session.turn("again")
        assert turn.failure.error_type == "StoredItemUnreadable"
        assert "stored message 2" in turn.failure.message
        session.messages[1] = kept
    assert len(model.calls) == 1


async def test_case_32_a_damaged_run_state_fails_the_turn_clearly() -> None:
    for damage in (lambda s: s[:-20], lambda s: "x" + s, lambda s: ""):
        model = script(response(call("ping", "c1", x="1")), response(says("done")))
        agent = Agent(name="A", model=model, tools=[ping])
        session = SteppedSession(
            lambda agent=agent: OpenAIAgentsRunner(agent),
            [model],
            before_resume=lambda state, _records, damage=damage: damage(state),
        )
        turn = await session.turn("go")
        assert turn.failure.error_type == "RunStateUnreadable"
        assert len(model.calls) == 1
