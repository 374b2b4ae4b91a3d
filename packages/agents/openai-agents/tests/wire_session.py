"""The framework's own model classes, through the real client, against a scripted provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agents import (
    Agent,
    Model,
    ModelProvider,
    ModelResponse,
    OpenAIProvider,
    RunConfig,
    function_tool,
)
from openai import AsyncOpenAI
from stepped_session import SteppedSession
from wire_conditions import Way

from dex_agents_openai_agents import OpenAIAgentsRunner
from dex_agents_testkit.model_server import RunningModelServer, serve_model_script


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


def config_of(client: AsyncOpenAI, way: Way) -> RunConfig:
    """Return the configuration of runs that call the model in this way."""
    real = OpenAIProvider(openai_client=client, use_responses=way.api == "responses")
    provider = real if way.streams else WholeResponsesProvider(real)
    return RunConfig(model_provider=provider, tracing_disabled=True)


@asynccontextmanager
async def scripted(
    way: Way, script: Mapping[str, Any]
) -> AsyncGenerator[tuple[RunningModelServer, RunConfig]]:
    """Serve a script, and configure runs to call it in this way."""
    async with (
        serve_model_script(script) as server,
        AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0) as client,
    ):
        yield server, config_of(client, way)


@asynccontextmanager
async def provider(
    way: Way, *replies: Mapping[str, Any], more_turns: tuple[Mapping[str, Any], ...] = ()
) -> AsyncGenerator[tuple[RunningModelServer, RunConfig]]:
    """Serve a turn of several replies, and turns of one reply each after it."""
    turns = [{"replies": list(replies)}, *({"replies": [reply]} for reply in more_turns)]
    async with scripted(way, {"turns": turns}) as served:
        yield served


def wire_session(config: RunConfig, **agent: Any) -> SteppedSession:
    """A session whose every Step has a runner of its own."""
    agent = {"tools": [look], **agent}
    return SteppedSession(lambda: OpenAIAgentsRunner(Agent(name="A", **agent), run_config=config))
