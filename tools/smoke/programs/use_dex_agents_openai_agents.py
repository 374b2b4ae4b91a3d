"""Runs one session of an agent of the OpenAI Agents SDK with a model that needs no network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Usage
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from dex_agents.local import open_sessions
from dex_agents_openai_agents import openai_agents_session_flow


class FixedModel(Model):
    """Answers the same to everything."""

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        text = ResponseOutputText(annotations=[], text="hello", type="output_text")
        message = ResponseOutputMessage(
            id="message-1", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("the session was told not to stream")


async def main() -> None:
    """Start a session and wait for its first answer."""
    agent = Agent(name="Greeter", instructions="Greet.", model=FixedModel())
    flow = openai_agents_session_flow(
        agent, flow_type="Greeter", run_config=RunConfig(tracing_disabled=True)
    )
    async with open_sessions(flow, data_dir="data") as app:
        sessions = app.sessions()
        await sessions.start_session("session-1", "hi")
        async with asyncio.timeout(60):
            while True:
                snapshot = await sessions.get_agent_snapshot("session-1")
                if snapshot.state is not None and snapshot.state.turn_count == 1:
                    break
                await asyncio.sleep(0.05)
        assert snapshot.messages[-1].text == "hello", snapshot


asyncio.run(main())
print("a session answered")
