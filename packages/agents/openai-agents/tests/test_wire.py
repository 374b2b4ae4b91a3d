"""The framework's own model classes, through the real client, against a scripted provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelProvider,
    ModelResponse,
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

from dex_agents import ModelError, TurnCompleted
from dex_agents_openai_agents import OpenAIAgentsRunner
from dex_agents_testkit.model_server import (
    RunningModelServer,
    responses_wire,
    serve_model_script,
)

APIS = ("responses", "chat")
#: Whether the provider streams; one that cannot is asked for whole responses.
STREAMS = (True, False)


class WholeResponses(Model):
    """A model of the framework that cannot stream."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return await self._model.get_response(*args, **kwargs)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("this provider does not stream")


class WholeResponsesProvider(ModelProvider):
    """A provider of such models."""

    def __init__(self, provider: ModelProvider) -> None:
        self._provider = provider

    def get_model(self, model_name: str | None) -> Model:
        return WholeResponses(self._provider.get_model(model_name))


@function_tool
def look(x: str) -> str:
    """Look something up."""
    return f"found {x}"


@asynccontextmanager
async def provider(
    api: str,
    *replies: Mapping[str, Any],
    more_turns: tuple[Mapping[str, Any], ...] = (),
    streams: bool = True,
) -> AsyncGenerator[tuple[RunningModelServer, RunConfig]]:
    turns = [{"replies": list(replies)}, *({"replies": [reply]} for reply in more_turns)]
    async with serve_model_script({"turns": turns}) as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0)
        async with client:
            real = OpenAIProvider(openai_client=client, use_responses=api == "responses")
            model_provider = real if streams else WholeResponsesProvider(real)
            yield server, RunConfig(model_provider=model_provider, tracing_disabled=True)


def wire_session(config: RunConfig, **agent: Any) -> SteppedSession:
    return SteppedSession(
        lambda: OpenAIAgentsRunner(Agent(name="A", tools=[look], **agent), run_config=config)
    )


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("api", APIS)
async def test_a_turn_with_a_tool_sends_what_a_plain_run_sends(api: str, streams: bool) -> None:
    replies = (
        {"text": "one moment", "tool_calls": [{"name": "look", "arguments": {"x": "7"}}]},
        {"text": "It is there."},
    )
    later = ({"text": "Again."},)
    bodies: list[list[Any]] = []
    async with provider(api, *replies, more_turns=later, streams=streams) as (
        server,
        config,
    ):
        agent = Agent(name="A", tools=[look])
        plain = await Runner.run(agent, [{"role": "user", "content": "where?"}], run_config=config)
        await Runner.run(
            agent, [*plain.to_input_list(), {"role": "user", "content": "and?"}], run_config=config
        )
        bodies.append([request.body for request in server.requests])
    async with provider(api, *replies, more_turns=later, streams=streams) as (
        server,
        config,
    ):
        session = wire_session(config)
        turn = await session.turn("where?")
        assert turn.text == "It is there."
        assert (await session.turn("and?")).text == "Again."
        bodies.append([request.body for request in server.requests])
        assert session.live_text() == "one momentIt is there.Again."
        assert turn.usage.model_calls == 2
        # Chat Completions streams report tokens only with `ModelSettings(include_usage=True)`.
        assert (turn.usage.input_tokens > 0) == (api == "responses" or not streams)
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


@pytest.mark.parametrize("streams", STREAMS)
async def test_encrypted_reasoning_is_sent_back_before_its_call(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = responses_wire._items

    def encrypted(*args: Any) -> Iterator[dict[str, Any]]:
        for item in items(*args):
            secret = {"encrypted_content": "sealed"} if item["type"] == "reasoning" else {}
            yield {**item, **secret}

    monkeypatch.setattr(responses_wire, "_items", encrypted)
    calls = [{"name": "look", "arguments": {"x": "7"}}]
    replies = ({"reasoning": ["I should look."], "tool_calls": calls}, {"text": "There."})
    settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
    async with provider("responses", *replies, streams=streams) as (server, config):
        await wire_session(config, model_settings=settings).turn("where?")
        first, second = (request.body for request in server.requests)
    assert first["include"] == ["reasoning.encrypted_content"]
    assert first["store"] is False
    _user, reasoning, tool_call, output = second["input"]
    assert (reasoning["type"], reasoning["encrypted_content"]) == ("reasoning", "sealed")
    assert (tool_call["type"], output["output"]) == ("function_call", "found 7")


async def end_of_plain_run(config: RunConfig, streams: bool) -> str:
    """Return the answer of a plain run, or the type of its error."""
    agent = Agent(name="A", tools=[look])
    try:
        if not streams:
            return str((await Runner.run(agent, "go", run_config=config)).final_output)
        result = Runner.run_streamed(agent, "go", run_config=config)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("api", APIS)
async def test_a_refusal_ends_the_turn_as_in_a_plain_run(api: str, streams: bool) -> None:
    async with provider(api, {"refusal": "I will not."}, streams=streams) as (server, config):
        plain = await end_of_plain_run(config, streams)
        session = wire_session(config)
        turn = await session.turn("go")
        assert turn.failure.error_type == plain == "ModelRefusalError"
        assert session.live_text() == ("I will not." if streams else "")
        assert len(server.requests) == 2


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("reply", [{"text": "A long ans"}, {"reasoning": ["Hm."], "text": ""}])
async def test_an_answer_cut_off_by_the_provider_ends_as_in_a_plain_run(
    reply: dict[str, Any], streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, events = responses_wire.response_object, responses_wire.response_events
    cut_off = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}

    def cut_events(*args: Any) -> list[Mapping[str, Any]]:
        *some, last = events(*args)
        return [*some, {**last, "type": "response.incomplete"}]

    monkeypatch.setattr(responses_wire, "response_object", lambda *args: whole(*args) | cut_off)
    monkeypatch.setattr(responses_wire, "response_events", cut_events)
    async with provider("responses", reply, streams=streams) as (server, config):
        plain = await end_of_plain_run(config, streams)
        turn = await wire_session(config).turn("go")
        if isinstance(turn.outcome, TurnCompleted):
            assert turn.text == plain
        else:
            assert turn.failure.error_type == plain
        assert len(server.requests) == 2, "what is cut off is not paid a second time"


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refused_request_ends_the_turn_after_one_request(
    api: str, status: int, streams: bool
) -> None:
    fault = {"status": status, "message": "sk-secret", "times": 9}
    async with provider(api, {"text": "never", "faults": [fault]}, streams=streams) as (
        server,
        config,
    ):
        turn = await wire_session(config).turn("go")
        assert str(status) in turn.failure.message
        assert len(server.requests) == 1
        if status == 401:
            assert turn.failure.error_type == "AuthenticationError"
            assert "OPENAI_API_KEY" in turn.failure.message
            assert "sk-secret" not in turn.failure.message


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_an_overloaded_provider_asks_for_another_attempt_after_its_own_delay(
    api: str, status: int, streams: bool
) -> None:
    fault = {"status": status, "message": "busy", "retry_after": 7}
    reply = {"text": "done", "faults": [fault]}
    async with provider(api, reply, streams=streams) as (server, config):
        session = wire_session(config)
        turn = await session.turn("go")
        assert isinstance(turn.outcome, ModelError)
        assert turn.outcome.retry_after == 7
        assert str(status) in turn.outcome.message
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("api", "streams", "fault"),
    [
        *((api, True, {"drop_after": after}) for api in APIS for after in (0, 2)),
        *((api, False, {"drop_after": 0}) for api in APIS),
        ("responses", True, {"fail_after": 2}),
    ],
    ids=str,
)
async def test_a_broken_answer_asks_for_another_attempt(
    api: str, streams: bool, fault: dict[str, Any]
) -> None:
    reply = {"text": "a longer answer", "faults": [fault]}
    async with provider(api, reply, streams=streams) as (server, config):
        turn = await wire_session(config).turn("go")
        assert isinstance(turn.outcome, ModelError)
        assert len(server.requests) == 1


@pytest.mark.parametrize("streams", STREAMS)
async def test_a_response_that_the_provider_declares_failed_asks_for_another_attempt(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = responses_wire.response_object
    failed = {"status": "failed", "error": {"code": "server_error", "message": "try later"}}
    monkeypatch.setattr(responses_wire, "response_object", lambda *args: whole(*args) | failed)
    reply = {"text": "done", "faults": [{"fail_after": 1}] if streams else []}
    async with provider("responses", reply, streams=streams) as (server, config):
        turn = await wire_session(config).turn("go")
        assert isinstance(turn.outcome, ModelError)
        assert "server_error" in turn.outcome.message
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
