"""Tools of an MCP server, which runs beside the worker as a process of its own.

Each call is a Step. What the server says of its tools decides how a lost call is treated: a tool
that only reads, or that may safely run twice, is called again.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agents import Agent
from agents.mcp import MCPServerStdio
from talk import talk

from dex_agents_openai_agents import openai_agents_session_flow

# Built here, connected by every process that serves the agent.
server = MCPServerStdio(
    {
        "command": sys.executable,
        "args": [str(Path(__file__).resolve().with_name("mcp_parts_server.py"))],
    },
    name="parts",
    cache_tools_list=True,
    client_session_timeout_seconds=60,
)
agent = Agent[None](
    name="Stock clerk",
    instructions="Count before you label.",
    mcp_servers=[server],
)
flow = openai_agents_session_flow(agent, flow_type="McpStdioAgent")


async def main() -> None:
    """Talk to the agent while its server is connected."""
    async with server:
        await talk(flow, "Label the chains as winter stock.")


if __name__ == "__main__":
    asyncio.run(main())
