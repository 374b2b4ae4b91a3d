"""An agent with tools that block or take their time, for workers that are watched for a while.

The environment says where its model is, how long its tools take, how soon a Step without a sign of
life counts as lost, and whether the worker collects garbage all the time.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, function_tool
from openai import AsyncOpenAI

from dex_agents import AgentSessionFlow, AgentSessionOptions, StepLimits, ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow
from dex_agents_testkit.faults import reach_place

FLOW = f"{Path(__file__).resolve()}:build_flow"
MODEL_VARIABLE = "LONG_RUNNING_MODEL_URL"
SECONDS_VARIABLE = "LONG_RUNNING_TOOL_SECONDS"
HEARTBEAT_VARIABLE = "LONG_RUNNING_HEARTBEAT_TIMEOUT"
COLLECT_VARIABLE = "LONG_RUNNING_COLLECTS"
COLLECT_EVERY = 0.01

ANSWER = "All of that is done."


def _asks(word: str, tool: str) -> dict[str, Any]:
    return {
        "when": {"user_contains": word, "not_called": tool},
        "reply": {"text": f"First I {tool}.", "tool_calls": [{"name": tool}]},
    }


#: What the user says decides which tool is called.
SCRIPT: dict[str, Any] = {
    "rules": [
        *(_asks(tool, tool) for tool in ("freeze", "wait", "doze", "look")),
        {"reply": {"text": ANSWER, "piece_characters": 2}},
    ]
}


def _collect_for_ever() -> None:
    # What is there already is not looked at, so that a collection is quick and finds what is new.
    gc.collect()
    gc.freeze()
    while True:
        gc.collect()
        time.sleep(COLLECT_EVERY)


def build_flow() -> AgentSessionFlow:
    """Build the flow; the test and its workers build the same one."""
    seconds = float(os.environ.get(SECONDS_VARIABLE, "0"))
    collector = threading.Thread(target=_collect_for_ever, name="collector", daemon=True)

    @function_tool
    async def freeze() -> str:
        """Block the event loop of the worker."""
        reach_place("freezing")
        time.sleep(seconds)  # noqa: ASYNC251 - what this tool is for
        return "frozen"

    @function_tool
    def wait() -> str:
        """Block a thread."""
        reach_place("waiting")
        time.sleep(seconds)
        return "waited"

    @function_tool
    async def doze() -> str:
        """Take long and block nothing."""
        reach_place("dozing")
        await asyncio.sleep(seconds)
        return "dozed"

    @function_tool
    async def look() -> str:
        """Be quick."""
        # From the first call on, when everything has been imported that a turn needs.
        if COLLECT_VARIABLE in os.environ and collector.ident is None:
            collector.start()
        return "looked"

    url = os.environ.get(MODEL_VARIABLE, "http://127.0.0.1:9/v1")
    client = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)
    write, read = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE), ToolPolicy(ToolEffect.READ)
    heartbeat = int(os.environ.get(HEARTBEAT_VARIABLE, "120"))
    return openai_agents_session_flow(
        Agent[Any](name="A", tools=[freeze, wait, doze, look]),
        flow_type="LongRunning",
        tool_policies={"freeze": write, "wait": write, "doze": read, "look": read},
        options=AgentSessionOptions(
            tool_limits=StepLimits(heartbeat_timeout=timedelta(seconds=heartbeat))
        ),
        run_config=RunConfig(
            model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True
        ),
    )
