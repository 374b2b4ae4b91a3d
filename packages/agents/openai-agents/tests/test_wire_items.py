"""What goes to a provider and comes back from it, item by item, over the real client."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    ModelRetrySettings,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    Runner,
    retry_policies,
)
from openai import AsyncOpenAI
from stepped_session import as_text
from wire_agent import DEFAULT_TRACING_VARIABLE, FLOW, MODEL_VARIABLE, SEALED
from wire_conditions import WAYS, Way
from wire_session import look, provider, scripted, wire_session

from dex_agents import ModelError
from dex_agents.testing import StartProcess
from dex_agents_testkit.faults import CrashableAgent
from dex_agents_testkit.model_server import serve_model_script

RESPONSES = [way for way in WAYS if way.api == "responses"]
LOOK = {"name": "look", "arguments": {"x": "7"}, "call_id": "c-look"}
MakeAgent = Callable[..., CrashableAgent]


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_turn_with_a_tool_sends_what_a_plain_run_sends(way: Way) -> None:
    replies = ({"text": "one moment", "tool_calls": [LOOK]}, {"text": "It is there."})
    later = ({"text": "Again."},)
    bodies: list[list[Any]] = []
    async with provider(way, *replies, more_turns=later) as (server, config):
        agent = Agent(name="A", tools=[look])
        plain = await Runner.run(agent, [{"role": "user", "content": "where?"}], run_config=config)
        await Runner.run(
            agent, [*plain.to_input_list(), {"role": "user", "content": "and?"}], run_config=config
        )
        bodies.append([request.body for request in server.requests])
    async with provider(way, *replies, more_turns=later) as (server, config):
        session = wire_session(config)
        turn = await session.turn("where?")
        assert turn.text == "It is there."
        assert (await session.turn("and?")).text == "Again."
        bodies.append([request.body for request in server.requests])
        assert session.live_text() == "one momentIt is there.Again."
        assert turn.usage.model_calls == 2
        # Chat Completions streams report tokens only with `ModelSettings(include_usage=True)`.
        assert (turn.usage.input_tokens > 0) == (way.api == "responses" or not way.streams)
    plain_bodies, own_bodies = bodies
    key = "input" if way.api == "responses" else "messages"
    assert [as_text(b[key]) for b in own_bodies] == [as_text(b[key]) for b in plain_bodies]
    assert [b["tools"] for b in own_bodies] == [b["tools"] for b in plain_bodies]


@pytest.mark.parametrize("way", [way for way in WAYS if way.streams], ids=str)
async def test_reasoning_is_streamed(way: Way) -> None:
    replies = (
        {"reasoning": ["I should look."], "tool_calls": [LOOK]},
        {"reasoning": ["Found it."], "text": "There."},
    )
    async with provider(way, *replies) as (server, config):
        session = wire_session(config)
        assert (await session.turn("where?")).text == "There."
        assert session.live_text("reasoning_delta") == "I should look.Found it."
        if way.api == "responses":
            kinds = [item.get("type") for item in server.requests[1].body["input"]]
            assert kinds[1:4] == ["reasoning", "function_call", "function_call_output"]


#: Keeps nothing of a response, so reasoning has to come back sealed.
SEALING: dict[str, Any] = {
    "rules": [
        {
            "when": {"user_contains": "where", "not_called": "look"},
            "reply": {
                "reasoning": ["Hm."],
                "encrypted_reasoning": "sealed 1",
                "tool_calls": [LOOK],
            },
        },
        {
            "when": {"user_contains": "fail"},
            "reply": {"text": "never"},
            "faults": [{"status": 400, "times": 9}],
        },
        {"reply": {"reasoning": ["So."], "encrypted_reasoning": "sealed 2", "text": "There."}},
    ]
}


def sealed_reasoning(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return each reasoning item with the type of the item after it."""
    return [
        (item["encrypted_content"], following.get("type", "message"))
        for item, following in pairwise(items)
        if item.get("type") == "reasoning"
    ]


@pytest.mark.parametrize("way", RESPONSES, ids=str)
async def test_sealed_reasoning_goes_back_before_its_call_and_into_later_turns(way: Way) -> None:
    async with scripted(way, SEALING) as (server, config):
        session = wire_session(config, model_settings=SEALED)
        assert (await session.turn("where?")).text == "There."
        assert (await session.turn("and then?")).text == "There."
        assert (await session.turn("fail")).failure.error_type == "BadRequestError"
        assert (await session.turn("and now?")).text == "There."
        bodies = [request.body for request in server.requests]
    assert all(body["include"] == ["reasoning.encrypted_content"] for body in bodies)
    assert all(body["store"] is False for body in bodies)
    first = [("sealed 1", "function_call")]
    turn = [*first, ("sealed 2", "message")]
    again = [*turn, ("sealed 2", "message")]
    # The failed turn left nothing that has lost its reasoning.
    expected = [[], first, turn, again, again]
    assert [sealed_reasoning(body["input"]) for body in bodies] == expected


NATIVE_CALLS: list[dict[str, Any]] = [
    LOOK,
    {"type": "custom_tool_call", "name": "read", "input": "the list", "call_id": "c-read"},
    {"type": "shell_call", "commands": ["ls", "id"], "call_id": "c-shell"},
    {
        "type": "apply_patch_call",
        "operation": {"type": "update_file", "path": "a", "diff": "+b"},
        "call_id": "c-patch",
    },
]


SECRET = "my code is 4711"


async def test_calls_of_every_kind_and_sealed_reasoning_outlive_a_killed_worker(
    crashable_agent: MakeAgent,
    start: StartProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 24 over a kill; and case 38 of a worker that has no key: it traces and tells nothing."""
    monkeypatch.delenv("OPENAI_AGENTS_DISABLE_TRACING", raising=False)
    thinking = {"reasoning": ["Hm."], "encrypted_reasoning": "sealed 1"}
    done = {"reasoning": ["So."], "encrypted_reasoning": "sealed 2", "text": f"Done, {SECRET}."}
    turns = [{"replies": [{**thinking, "tool_calls": NATIVE_CALLS}, done]}, {"replies": [done]}]
    async with serve_model_script({"turns": turns}) as model:
        env = {MODEL_VARIABLE: model.base_url, DEFAULT_TRACING_VARIABLE: "1"}
        async with crashable_agent(FLOW, start=start, env=env) as agent:
            agent.kill_at("tool.effect:shell")
            await agent.say("s", SECRET)
            snapshot = await agent.turn_ended("s")
            await agent.say("s", "and then?")
            await agent.turn_ended("s", 2)
        _, second, third = (request.body["input"] for request in model.requests)

    assert snapshot.state is not None
    assert snapshot.state.last_turn_error is None
    assert snapshot.messages[-1].text == done["text"]
    for call in NATIVE_CALLS:
        name = call.get("name") or call["type"].removesuffix("_call")
        assert agent.reached[f"tool.before:{name}"] >= 1, f"{name} is a Step of its own"
    assert agent.reached["tool.before:shell"] == 2
    assert [item.get("type", "message") for item in second] == [
        "message",
        "reasoning",
        *(call.get("type", "function_call") for call in NATIVE_CALLS),
        *(f"{call.get('type', 'function_call')}_output" for call in NATIVE_CALLS),
    ]
    outputs = {item["call_id"]: item["output"] for item in second if "output" in item}
    assert outputs["c-look"] == "found 7"
    assert outputs["c-read"] == "read the list"
    assert outputs["c-shell"][0]["stdout"] == "ran ['ls', 'id']"
    assert outputs["c-patch"] == "a is patched"
    assert sealed_reasoning(second) == [("sealed 1", "function_call")]
    assert sealed_reasoning(third) == [("sealed 1", "function_call"), ("sealed 2", "message")]
    assert as_text(third[: len(second)]) == as_text(second)

    logs = [log.read_text() for log in (tmp_path / "crashable-agent-1").glob("worker*.log")]
    assert len(logs) == 2
    for log in logs:
        assert "DEBUG openai.agents: Tracing is disabled" in log
        assert "Creating trace" not in log
        assert "OPENAI_API_KEY" not in log
        for text in (SECRET, "the list", "found 7", "sealed"):
            assert text not in log


async def test_a_provider_that_is_down_asks_for_another_attempt() -> None:
    client = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="unused", max_retries=0)
    async with client:
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client))
        turn = await wire_session(config).turn("go")
    assert isinstance(turn.outcome, ModelError)
    assert turn.outcome.error_type == "APIConnectionError"


async def test_a_missing_key_ends_the_turn_with_words_and_without_a_request() -> None:
    turn = await wire_session(RunConfig()).turn("go")
    assert turn.failure.error_type == "ProviderCredentialsMissing"
    assert "OPENAI_API_KEY" in turn.failure.message


async def test_retries_of_the_framework_itself_stay_within_the_step() -> None:
    reply = {"text": "done", "faults": [{"status": 500, "message": "busy"}]}
    async with provider(Way("responses", streams=True), reply) as (server, config):
        settings = ModelSettings(
            retry=ModelRetrySettings(
                max_retries=2, policy=retry_policies.http_status([500]), backoff=None
            )
        )
        turn = await wire_session(config, model_settings=settings).turn("go")
        assert turn.text == "done"
        assert turn.model_steps == 1
        assert len(server.requests) == 2
