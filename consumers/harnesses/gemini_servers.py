"""MCP servers in the settings.json of Gemini CLI, and of Qwen Code, which took it over."""

from __future__ import annotations

from collections.abc import Sequence

from topics.types.mcp import STDIO, McpServer

URLS = {"sse": "url", "streamable-http": "httpUrl"}


def servers_table(servers: Sequence[McpServer]) -> dict[str, object]:
    """The value of `mcpServers`."""
    return {server.name: _server(server) for server in servers}


def _server(server: McpServer) -> dict[str, object]:
    if server.transport == STDIO:
        return {"command": server.command, "args": server.args, "env": server.env}
    return {URLS[server.transport]: server.url, "headers": server.headers}
