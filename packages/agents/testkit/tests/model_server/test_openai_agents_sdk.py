"""The scripted model behind the real model classes of the OpenAI Agents SDK."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

from dex_agents_testkit.model_server import RunningModelServer, serve_model_script

MODELS = [OpenAIResponsesModel, OpenAIChatCompletionsModel]
# Chat Completions report usage in a stream only when asked to.
QUIET = RunConfig(tracing_disabled=True, model_settings=ModelSettings(include_usage=True))

REFUND: dict[str, Any] = {
    "rules": [
        {
            "name": "hand over",
            "when": {"instructions_contain": "triage", "user_contains": "refund"},
            "reply": {"tool_calls": [{"handoff": "Refunds"}]},
        },
        {
            "name": "look up",
            "when": {"instructions_contain": "refund desk", "not_called": "look"},
            "reply": {
                "reasoning": "First the order.",
                "tool_calls": [
                    {"name": "look", "arguments": {"order": "7"}},
                    {"name": "look", "arguments": {"order": "8"}},
                ],
            },
        },
        {
            "name": "answer",
            "when": {"last_tool": "look"},
            "reply": {"text": "Order says ${tool:look}.", "piece_characters": 5},
        },
        {"name": "second turn", "when": {"turn": 2}, "reply": {"text": "You said: ${user:1}"}},
    ]
}


@function_tool
def look(order: str) -> str:
    """Look an order up."""
    return f"paid {order}"


def support_agent(model: Model) -> Agent[None]:
    refunds = Agent[None](
        name="Refunds", instructions="You are the refund desk", tools=[look], model=model
    )
    return Agent[None](name="Triage", instructions="You triage", handoffs=[refunds], model=model)


def model_of(kind: type[Model], server: RunningModelServer) -> Model:
    client = AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0)
    return kind("scripted", client)  # pyright: ignore[reportCallIssue] both take (model, client)


@pytest.mark.parametrize("kind", MODELS)
async def test_a_whole_agent_run_goes_over_handoff_tools_and_answer(kind: type[Model]) -> None:
    async with serve_model_script(REFUND) as server:
        result = await Runner.run(
            support_agent(model_of(kind, server)), "I want a refund", run_config=QUIET
        )

        assert result.final_output == "Order says paid 8."
        assert result.last_agent.name == "Refunds"
        assert [request.rule for request in server.requests] == ["hand over", "look up", "answer"]
        assert result.context_wrapper.usage.requests == 3


@pytest.mark.parametrize("kind", MODELS)
async def test_a_streamed_agent_run_shows_the_text_piece_by_piece(kind: type[Model]) -> None:
    async with serve_model_script(REFUND) as server:
        result = Runner.run_streamed(
            support_agent(model_of(kind, server)), "I want a refund", run_config=QUIET
        )
        pieces: list[str] = []
        thoughts: list[str] = []
        async for event in result.stream_events():
            if event.type != "raw_response_event":
                continue
            if event.data.type == "response.output_text.delta":
                pieces.append(event.data.delta)
            elif event.data.type == "response.reasoning_summary_text.delta":
                thoughts.append(event.data.delta)

        assert result.final_output == "".join(pieces) == "Order says paid 8."
        assert len(pieces) == 4
        assert "".join(thoughts) == "First the order."
        assert all(request.body["stream"] is True for request in server.requests)
        assert result.context_wrapper.usage.requests == 3
        assert result.context_wrapper.usage.output_tokens > 0


@pytest.mark.parametrize("kind", MODELS)
async def test_the_next_turn_sends_the_first_turns_conversation(kind: type[Model]) -> None:
    async with serve_model_script(REFUND) as server:
        agent = support_agent(model_of(kind, server))
        first = await Runner.run(agent, "I want a refund", run_config=QUIET)
        second = await Runner.run(
            agent, [*first.to_input_list(), {"role": "user", "content": "And?"}], run_config=QUIET
        )

        sent = server.requests[-1].conversation
        assert second.final_output == "You said: I want a refund"
        assert sent.user_texts == ("I want a refund", "And?")
        assert sent.tool_output("look") == "paid 8"
        calls = [
            json.loads(item.text)
            for item in sent.items
            if item.tool_name == "look" and item.kind == "tool_call"
        ]
        assert calls == [{"order": "7"}, {"order": "8"}]
