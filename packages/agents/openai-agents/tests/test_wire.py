"""The framework's own model classes, through the real client, against a scripted provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents import (
    Agent,
    ModelRetrySettings,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    Runner,
    function_tool,
    retry_policies,
)
from openai import AsyncOpenAI
from stepped_session import SteppedSession, as_text

from dex_agents import ModelError
from dex_agents_openai_agents import OpenAIAgentsRunner
from dex_agents_testkit.model_server import RunningModelServer, serve_model_script

APIS = ("responses", "chat")


@function_tool
def look(x: str) -> str:
    """Look something up."""
    return f"found {x}"


@asynccontextmanager
async def provider(
    api: str, *replies: Mapping[str, Any], more_turns: tuple[Mapping[str, Any], ...] = ()
) -> AsyncGenerator[tuple[RunningModelServer, RunConfig]]:
    turns = [{"replies": list(replies)}, *({"replies": [reply]} for reply in more_turns)]
    async with serve_model_script({"turns": turns}) as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0)
        async with client:
            yield (
                server,
                RunConfig(
                    model_provider=OpenAIProvider(
                        openai_client=client, use_responses=api == "responses"
                    ),
                    tracing_disabled=True,
                ),
            )


def wire_session(config: RunConfig, **agent: Any) -> SteppedSession:
    return SteppedSession(
        lambda: OpenAIAgentsRunner(Agent(name="A", tools=[look], **agent), run_config=config)
    )


@pytest.mark.parametrize("api", APIS)
async def test_a_turn_with_a_tool_sends_what_a_plain_run_sends(api: str) -> None:
    replies = (
        {"text": "one moment", "tool_calls": [{"name": "look", "arguments": {"x": "7"}}]},
        {"text": "It is there."},
    )
    later = ({"text": "Again."},)
    bodies: list[list[Any]] = []
    async with provider(api, *replies, more_turns=later) as (server, config):
        agent = Agent(name="A", tools=[look])
        plain = await Runner.run(agent, [{"role": "user", "content": "where?"}], run_config=config)
        await Runner.run(
            agent, [*plain.to_input_list(), {"role": "user", "content": "and?"}], run_config=config
        )
        bodies.append([request.body for request in server.requests])
    async with provider(api, *replies, more_turns=later) as (server, config):
        session = wire_session(config)
        turn = await session.turn("where?")
        assert turn.text == "It is there."
        assert (await session.turn("and?")).text == "Again."
        bodies.append([request.body for request in server.requests])
        assert session.live_text() == "one momentIt is there.Again."
        assert turn.usage.model_calls == 2
        # Chat Completions streams report tokens only with `ModelSettings(include_usage=True)`.
        assert (turn.usage.input_tokens > 0) == (api == "responses")
    plain_bodies, own_bodies = bodies
    key = "input" if api == "responses" else "messages"
    assert [as_text(b[key]) for b in own_bodies] == [as_text(b[key]) for b in plain_bodies]
    assert [b["tools"] for b in own_bodies] == [b["tools"] for b in plain_bodies]


async def test_reasoning_summaries_are_streamed_and_sent_back() -> None:
    async with provider(
        "responses",
        {
            "reasoning": ["I should look."],
            "tool_calls": [{"name": "look", "arguments": {"x": "7"}}],
        },
        {"reasoning": ["Found it."], "text": "There."},
    ) as (server, config):
        session = wire_session(config)
        await session.turn("where?")
        assert session.live_text("reasoning_delta") == "I should look.Found it."
        kinds = [item.get("type") for item in server.requests[1].body["input"]]
        assert kinds[1:4] == ["reasoning", "function_call", "function_call_output"]


async def test_a_refusal_ends_the_turn_as_in_a_plain_run() -> None:
    async with provider("responses", {"refusal": "I will not."}) as (_server, config):
        session = wire_session(config)
        turn = await session.turn("do it")
        assert turn.failure.error_type == "ModelRefusalError"
        assert session.live_text() == "I will not."


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refused_request_ends_the_turn_after_one_request(api: str, status: int) -> None:
    async with provider(
        api, {"text": "never", "faults": [{"status": status, "message": "sk-secret", "times": 9}]}
    ) as (server, config):
        turn = await wire_session(config).turn("go")
        assert str(status) in turn.failure.message
        assert len(server.requests) == 1
        if status == 401:
            assert turn.failure.error_type == "AuthenticationError"
            assert "OPENAI_API_KEY" in turn.failure.message
            assert "sk-secret" not in turn.failure.message


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_an_overloaded_provider_asks_for_another_attempt_after_its_own_delay(
    api: str, status: int
) -> None:
    fault = {"status": status, "message": "busy", "retry_after": 7}
    async with provider(api, {"text": "done", "faults": [fault]}) as (server, config):
        session = wire_session(config)
        turn = await session.turn("go")
        assert isinstance(turn.outcome, ModelError)
        assert turn.outcome.retry_after == 7
        assert str(status) in turn.outcome.message
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "fault", [{"drop_after": 2}, {"drop_after": 0}, {"fail_after": 2}], ids=str
)
async def test_a_broken_stream_asks_for_another_attempt(fault: dict[str, Any]) -> None:
    async with provider("responses", {"text": "a longer answer", "faults": [fault]}) as (
        server,
        config,
    ):
        turn = await wire_session(config).turn("go")
        assert not isinstance(turn.outcome, BaseException) or isinstance(turn.outcome, ModelError)
        assert isinstance(turn.outcome, ModelError)
        assert len(server.requests) == 1


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
    fault = {"status": 500, "message": "busy"}
    async with provider("responses", {"text": "done", "faults": [fault]}) as (server, config):
        settings = ModelSettings(
            retry=ModelRetrySettings(
                max_retries=2, policy=retry_policies.http_status([500]), backoff=None
            )
        )
        turn = await wire_session(config, model_settings=settings).turn("go")
        assert turn.text == "done"
        assert turn.model_steps == 1
        assert len(server.requests) == 2
