"""A small MCP server over standard input and output: the workshop's shelf of parts."""

from __future__ import annotations

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("parts")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def count_parts(part: str) -> int:
    """Count how many of a part are on the shelf."""
    return {"chain": 4, "bell": 0}.get(part, 1)


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def label_part(part: str, text: str) -> str:
    """Put a label on a part; the same label again changes nothing."""
    return f"{part} is labelled {text!r}"


if __name__ == "__main__":
    server.run("stdio")
