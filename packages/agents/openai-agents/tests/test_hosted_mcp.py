"""A hosted MCP server that asks before it calls a tool: the session asks a person."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, Runner, RunState, function_tool
from native_calls import approval_request, whole
from stepped_session import as_text, call, says, script, session_of

from dex_agents import AgentDefinitionError, AgentToolCall, ToolCallStatus, ToolEffect, ToolPolicy
from dex_agents_openai_agents import OpenAIAgentsRunner
from dex_agents_openai_agents._stored.run_state import decode_run, encode_run

USER: list[Any] = [{"role": "user", "content": "go"}]


def crm(label: str = "crm", **options: Any) -> HostedMCPTool:
    """A server that asks before each call."""
    return HostedMCPTool(
        tool_config={
            "type": "mcp",
            "server_label": label,
            "server_url": "https://crm.invalid",
            "require_approval": "always",
        },
        **options,
    )


@function_tool
def ping() -> str:
    """Answer."""
    return "pong"


def agent(model: Any, *tools: Any) -> Agent[Any]:
    return Agent(name="A", model=model, tools=list(tools) or [crm()])


@pytest.mark.sdk_fact("kind.hosted-approvals-are-pending-calls")
@pytest.mark.parametrize("answer", [True, False, "Keep it."])
async def test_the_answer_goes_back_as_in_a_plain_run(answer: bool | str) -> None:
    steps = [whole(approval_request("mcpr_1", "drop", '{"id":7}')), whole(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    plain = await Runner.run(agent(plain_model), list(USER))
    state: RunState[Any, Any] = plain.to_state()
    [item] = plain.interruptions
    if answer is True:
        state.approve(item)
    else:
        state.reject(item, rejection_message=answer or None)
    await Runner.run(agent(plain_model), state)

    session = session_of(agent(model), answer=lambda _record: answer)
    turn = await session.turn("go")
    assert session.asked == ["mcpr_1"]
    assert turn.records["mcpr_1"].tool_name == "crm.drop"
    assert turn.records["mcpr_1"].arguments == '{"id":7}'
    assert [as_text(c.input) for c in model.calls] == [as_text(c.input) for c in plain_model.calls]
    response: Any = model.calls[1].input[-1]
    assert (response["type"], response["approve"]) == ("mcp_approval_response", answer is True)


async def test_the_question_is_asked_whatever_the_policy_says() -> None:
    model = script(whole(approval_request("mcpr_1", "drop")), whole(says("done")))
    session = session_of(
        agent(model),
        policies={"crm.drop": ToolPolicy(ToolEffect.READ, requires_approval=False)},
        answer=lambda _record: False,
    )
    await session.turn("go")
    assert session.asked == ["mcpr_1"]


async def test_a_question_and_a_tool_call_of_one_response_are_both_answered() -> None:
    model = script(
        whole(approval_request("mcpr_1", "drop"), call("ping", "c1")),
        whole(approval_request("mcpr_2", "drop")),
        whole(says("done")),
    )
    session = session_of(agent(model, crm(), ping), answer=lambda r: r.tool_call_id == "mcpr_2")
    turn = await session.turn("go")
    assert turn.text == "done"
    assert session.asked == ["mcpr_1", "mcpr_2"]
    answers = {
        item["approval_request_id"]: item["approve"]
        for item in as_items(model.calls[2].input)
        if item.get("type") == "mcp_approval_response"
    }
    assert answers == {"mcpr_1": False, "mcpr_2": True}


async def test_the_next_turn_still_has_the_question_and_its_answer() -> None:
    model = script(
        whole(approval_request("mcpr_1", "drop")), whole(says("done")), whole(says("next"))
    )
    session = session_of(agent(model))
    await session.turn("go")
    await session.turn("more")
    kinds = [item.get("type") or item.get("role") for item in as_items(model.calls[2].input)]
    assert kinds == [
        "user",
        "mcp_approval_request",
        "mcp_approval_response",
        "message",
        "user",
    ]


async def test_an_approval_whose_step_was_lost_stays_an_approval() -> None:
    def lose(state: str, records: dict[str, AgentToolCall]) -> str:
        lost = replace(records["mcpr_1"], status=ToolCallStatus.OUTCOME_UNKNOWN, output=None)
        records["mcpr_1"] = lost
        return state

    model = script(whole(approval_request("mcpr_1", "drop")), whole(says("done")))
    await session_of(agent(model), before_resume=lose).turn("go")
    assert as_items(model.calls[1].input)[-1]["approve"] is True


@pytest.mark.parametrize("answer", [True, "Keep it."])
async def test_the_answer_goes_back_from_a_state_the_framework_refuses(answer: bool | str) -> None:
    def from_the_future(state: str, records: dict[str, AgentToolCall]) -> str:
        run = decode_run(state, records)
        return encode_run(replace(run, state={**run.state, "$schemaVersion": "99.0"}), records)

    steps = [whole(approval_request("mcpr_1", "drop")), whole(says("done"))]
    usual_model, model = script(*steps), script(*steps)
    await session_of(agent(usual_model), answer=lambda _record: answer).turn("go")
    session = session_of(agent(model), answer=lambda _record: answer, before_resume=from_the_future)
    await session.turn("go")
    assert as_text(model.calls[1].input) == as_text(usual_model.calls[1].input)


async def test_a_callback_of_the_application_answers_without_a_person() -> None:
    server = crm(on_approval_request=lambda _request: {"approve": False, "reason": "never"})
    steps = [whole(approval_request("mcpr_1", "drop")), whole(says("done"))]
    plain_model, model = script(*steps), script(*steps)
    await Runner.run(agent(plain_model, server), list(USER))
    session = session_of(agent(model, server))
    turn = await session.turn("go")
    assert turn.kinds == ["TurnContinues", "TurnCompleted"]
    assert session.asked == []
    assert [as_text(c.input) for c in model.calls] == [as_text(c.input) for c in plain_model.calls]


async def test_a_server_that_a_deploy_removed_ends_the_turn_with_its_tool_named() -> None:
    model = script(whole(approval_request("mcpr_1", "drop")), whole(says("done")))
    session = session_of(agent(model))
    servers = chain([crm(), crm(), crm()], repeat(crm("other")))
    session.make_runner = lambda: OpenAIAgentsRunner(agent(model, next(servers)))
    turn = await session.turn("go")
    assert turn.failure.error_type == "ToolMissing"
    assert "'crm.drop'" in turn.failure.message


def test_policies_may_name_tools_of_a_hosted_server() -> None:
    read = ToolPolicy(ToolEffect.READ)
    OpenAIAgentsRunner(agent(None)).validate_tool_policies({"crm.drop": read})
    with pytest.raises(AgentDefinitionError, match="cmr"):
        OpenAIAgentsRunner(agent(None)).validate_tool_policies({"cmr.drop": read})


def as_items(value: Any) -> list[dict[str, Any]]:
    return value
