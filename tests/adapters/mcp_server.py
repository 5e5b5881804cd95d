"""An MCP server made with the official package: a counter. python mcp_server.py [PORT]: over stdio, or HTTP on that port."""

from __future__ import annotations

import sys
import warnings

warnings.filterwarnings("ignore")

from mcp.server import MCPServer  # noqa: E402
from mcp.server.mcpserver import Context  # noqa: E402

server = MCPServer("counter")
counts: dict[str, int] = {}


def key(context: Context) -> str:
    return (context.headers or {}).get("mcp-session-id", "stdio")


@server.tool()
def add(n: int, context: Context) -> str:
    """Add n to the counter."""
    counts[key(context)] = counts.get(key(context), 0) + n
    return f"now {counts[key(context)]}"


@server.tool()
def fail() -> str:
    """Always fails."""
    raise RuntimeError("no luck")


@server.tool()
def start_at(n: int, context: Context) -> str:
    """Set the counter."""
    counts[key(context)] = n
    return "set"


if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run("stdio")
