"""An agent with a tool of every kind on the Responses wire, whose reasoning comes back sealed.

It runs in worker processes of the tests that kill them. The environment says where its model is,
where each process writes what it traces, and whether tracing is left as it is by default.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    ApplyPatchTool,
    CustomTool,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    ShellTool,
    function_tool,
    set_trace_processors,
)
from agents.editor import ApplyPatchOperation
from openai import AsyncOpenAI
from span_log import SpanFile

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents_openai_agents import openai_agents_session_flow
from dex_agents_testkit.faults import reach_place

MODEL_VARIABLE = "WIRE_MODEL_URL"
SPANS_VARIABLE = "WIRE_SPANS"
DEFAULT_TRACING_VARIABLE = "WIRE_DEFAULT_TRACING"
SEALED = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
#: What writes to the log on behalf of a session; the framework hides content unless told otherwise.
LOGGERS = ("dex", "dex_agents", "dex_agents_openai_agents", "openai.agents")
FLOW = f"{Path(__file__).resolve()}:build_flow"


class _Editor:
    def update_file(self, operation: ApplyPatchOperation) -> str:
        return f"{operation.path} is patched"

    create_file = delete_file = update_file


def build_flow() -> AgentSessionFlow:
    """Build the flow; the test and its workers build the same one."""

    def instructions(_context: Any, _agent: Any) -> str:
        reach_place("instructing")
        return "Help."

    @function_tool
    def look(x: str) -> str:
        """Look something up."""
        reach_place("looking")
        return f"found {x}"

    @function_tool
    def pay(order: str) -> str:
        """Pay an order."""
        return f"paid {order}"

    async def read(_context: Any, text: str) -> str:
        return f"read {text}"

    spans = os.environ.get(SPANS_VARIABLE)
    if spans is not None:
        set_trace_processors([SpanFile(Path(spans))])
    is_traced = spans is not None or DEFAULT_TRACING_VARIABLE in os.environ
    if DEFAULT_TRACING_VARIABLE in os.environ:
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.DEBUG)
    client = AsyncOpenAI(
        base_url=os.environ.get(MODEL_VARIABLE, "http://127.0.0.1:9/v1"),
        api_key="unused",
        max_retries=0,
    )
    agent = Agent[Any](
        name="A",
        instructions=instructions,
        model_settings=SEALED,
        tools=[
            look,
            pay,
            CustomTool("read", "Read a text.", read),
            ShellTool(lambda request: f"ran {request.data.action.commands}"),
            ApplyPatchTool(_Editor()),
        ],
    )
    again = ToolPolicy(ToolEffect.IDEMPOTENT_WRITE)
    return openai_agents_session_flow(
        agent,
        flow_type="Wire",
        tool_policies={
            "look": ToolPolicy(ToolEffect.READ),
            "pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
            "read": ToolPolicy(ToolEffect.READ),
            "shell": again,
            "apply_patch": again,
        },
        run_config=RunConfig(
            model_provider=OpenAIProvider(openai_client=client), tracing_disabled=not is_traced
        ),
    )
