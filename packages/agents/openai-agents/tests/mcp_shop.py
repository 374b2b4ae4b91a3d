"""MCP servers in memory, for agents of the tests."""

from __future__ import annotations

from typing import Any

from agents.mcp import MCPServer
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from mcp.types import Tool as MCPTool

from dex_agents_openai_agents import get_current_deferred_tool_execution


class ServerInMemory(MCPServer):
    """What needs no connection and has no prompts; a subclass says its name and tools."""

    async def connect(self) -> None:
        return None

    async def cleanup(self) -> None:
        return None

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        raise NotImplementedError


class Shop(ServerInMemory):
    """A shop that notes what its tools are asked."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.runs: list[tuple[str, Any]] = []
        self.keys: list[str] = []
        self.gone: set[str] = set()

    @property
    def name(self) -> str:
        return "shop"

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        hints = {
            "stock": ToolAnnotations(read_only_hint=True),
            "label": ToolAnnotations(idempotent_hint=True),
            "order": None,
            "broken": ToolAnnotations(read_only_hint=True),
            "picture": ToolAnnotations(read_only_hint=True),
            "down": ToolAnnotations(read_only_hint=True),
        }
        return [
            MCPTool(
                name=name,
                description=name,
                input_schema={"type": "object", "properties": {"item": {"type": "string"}}},
                annotations=annotations,
            )
            for name, annotations in hints.items()
            if name not in self.gone
        ]

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        self.runs.append((tool_name, arguments))
        execution = get_current_deferred_tool_execution()
        self.keys.append(execution.idempotency_key if execution else "")
        if tool_name == "down":
            raise ConnectionError("server is down")
        if tool_name == "picture":
            image = ImageContent(type="image", data="AAAA", mime_type="image/png")
            return CallToolResult(content=[image])
        text = TextContent(type="text", text=f"{tool_name} of {(arguments or {}).get('item')}")
        return CallToolResult(content=[text], is_error=tool_name == "broken")
