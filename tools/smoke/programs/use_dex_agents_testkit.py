"""Runs one session with a scripted runner and asks the scripted model server one question."""

from __future__ import annotations

import asyncio
import json
import urllib.request

from dex_agents import AgentSessionFlow
from dex_agents.local import open_sessions
from dex_agents_testkit import ScriptedRunner, parse_runner_script
from dex_agents_testkit.model_server import serve_model_script


async def run_session() -> None:
    """Start a session and wait for its first answer."""
    script = parse_runner_script({"turns": [{"replies": [{"message": "hello"}]}]})
    flow = AgentSessionFlow(ScriptedRunner(script), flow_type="Greeter")
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


async def ask_model() -> None:
    """Send one request to the model server."""
    async with serve_model_script({"turns": [{"replies": [{"text": "hello"}]}]}) as server:

        def post() -> bytes:
            body = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
            request = urllib.request.Request(
                f"{server.base_url}/chat/completions",
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as response:
                return response.read()

        reply = json.loads(await asyncio.to_thread(post))
        assert reply["choices"][0]["message"]["content"] == "hello", reply


asyncio.run(run_session())
asyncio.run(ask_model())
print("a session and a model answered")
