"""Tools known at run time only: MCP servers, and agents that list their tools themselves."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, RunContextWrapper, Runner, Tool, function_tool
from mcp_shop import Shop
from stepped_session import as_text, call, outputs, response, says, script, session_of

from dex_agents import ToolCallStatus, ToolEffect, ToolPolicy
from dex_agents_openai_agents import OpenAIAgentsRunner


def shop_agent(shop: Shop, model: Any) -> Agent[Any]:
    return Agent(name="A", model=model, mcp_servers=[shop])


async def test_case_39_mcp_tools_run_as_steps_with_effects_from_their_hints() -> None:
    shop = Shop()
    model = script(
        response(
            call("stock", "c1", item="a"),
            call("label", "c2", item="b"),
            call("order", "c3", item="c"),
        ),
        response(says("done")),
    )
    session = session_of(
        shop_agent(shop, model),
        default_effect=ToolEffect.UNCLASSIFIED,
        body_runs=lambda: len(shop.runs),
    )
    turn = await session.turn("go")
    assert {name: record.effect for name, record in turn.records.items()} == {
        "c1": ToolEffect.READ,
        "c2": ToolEffect.IDEMPOTENT_WRITE,
        "c3": ToolEffect.UNCLASSIFIED,
    }
    assert session.asked == ["c3"]
    texts = [parts[0]["text"] for parts in outputs(model.calls[1].input)]
    assert texts == ["stock of a", "label of b", "order of c"]
    assert sorted(shop.keys) == [f"session-1/turn-1/c{i}" for i in (1, 2, 3)]


async def test_case_39_a_policy_wins_over_a_hint_and_hints_can_be_distrusted() -> None:
    for options, effect in (
        (
            {"policies": {"stock": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)}},
            "non_idempotent_write",
        ),
        ({"trust_mcp_hints": False, "default_effect": ToolEffect.UNCLASSIFIED}, "unclassified"),
    ):
        model = script(response(call("stock", "c1", item="a")), response(says("done")))
        turn = await session_of(shop_agent(Shop(), model), **options).turn("go")  # pyright: ignore[reportArgumentType] - two sets of options
        assert turn.records["c1"].effect == effect


@pytest.mark.parametrize("name", ["broken", "picture"])
async def test_case_39_the_model_reads_what_it_reads_in_a_plain_run(name: str) -> None:
    steps = [response(call(name, "c1", item="a")), response(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    await Runner.run(shop_agent(Shop(), plain_model), [{"role": "user", "content": "go"}])
    await session_of(shop_agent(Shop(), model)).turn("go")
    assert as_text(model.calls[1].input) == as_text(plain_model.calls[1].input)


async def test_case_39_a_server_that_is_down_fails_the_call_after_its_attempts() -> None:
    shop = Shop()
    model = script(response(call("down", "c1")), response(says("sorry")))
    turn = await session_of(shop_agent(shop, model)).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert len(shop.runs) == 3
    assert turn.text == "sorry"


async def test_case_39_the_model_reads_that_a_tool_left_the_list() -> None:
    shop = Shop()

    def leave(_record: Any) -> bool:
        shop.gone.add("order")
        return True

    model = script(response(call("order", "c1", item="a")), response(says("I see")))
    turn = await session_of(
        shop_agent(shop, model), default_effect=ToolEffect.UNCLASSIFIED, answer=leave
    ).turn("go")
    assert turn.records["c1"].status is ToolCallStatus.FAILED
    assert "order was not run: it is no longer a tool" in outputs(model.calls[1].input)[0]
    assert shop.runs == []
    assert turn.text == "I see"


async def test_case_39_a_server_may_require_approval() -> None:
    model = script(
        response(call("stock", "c1", item="a"), call("label", "c2", item="b")),
        response(says("done")),
    )
    shop = Shop(require_approval={"always": {"tool_names": ["stock"]}})
    session = session_of(shop_agent(shop, model))
    await session.turn("go")
    assert session.asked == ["c1"]


def test_policies_of_unknown_tools_are_let_through_where_tools_come_at_run_time() -> None:
    runner = OpenAIAgentsRunner(shop_agent(Shop(), None))
    runner.validate_tool_policies({"stock": ToolPolicy(ToolEffect.READ)})


async def test_an_agent_that_lists_its_own_tools_has_them_gated() -> None:
    runs: list[str] = []

    @function_tool
    def listed() -> str:
        """Do it."""
        runs.append("run")
        return "did it"

    class Listing(Agent[Any]):
        """An agent with a tool list of its own."""

        async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
            return [*await super().get_all_tools(run_context), listed]

    model = script(response(call("listed", "c1")), response(says("done")))
    turn = await session_of(Listing(name="A", model=model), body_runs=lambda: len(runs)).turn("go")
    assert turn.text == "done"
    assert outputs(model.calls[1].input) == ["did it"]
    assert runs == ["run"]
