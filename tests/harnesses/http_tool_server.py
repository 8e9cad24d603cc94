"""A server of the Model Context Protocol's own Python SDK over HTTP: `python http_tool_server.py TRANSPORT FD`, FD a listening socket.

Its tool `weigh` answers with the weight of a name, and the header X-Unit of the request. The SDK is in the environment of mini-swe-agent.
"""

from __future__ import annotations

import socket
import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context


def weigh(thing: str, context: Context) -> str:
    """Weighs a thing."""
    return f"{thing} weighs 42 {(context.headers or {}).get('x-unit')} exactly"


if __name__ == "__main__":
    scales = MCPServer("scales")
    scales.add_tool(weigh)
    transport, descriptor = sys.argv[1:]
    listener = socket.socket(fileno=int(descriptor))
    host: str = listener.getsockname()[0]
    app = scales.sse_app(host=host) if transport == "sse" else scales.streamable_http_app(host=host)
    uvicorn.Server(uvicorn.Config(app)).run(sockets=[listener])
