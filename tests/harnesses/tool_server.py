"""An MCP server on stdin and stdout, with one tool: `weigh` answers with the weight of a name, and the server's variable UNIT.

Once a client has asked for its tools, the file LISTED exists, if that variable names one.

One JSON-RPC 2.0 message a line (Model Context Protocol 2025-06-18, "stdio"); it speaks whatever version its client asks for.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TOOL = {
    "name": "weigh",
    "description": "Weighs a thing.",
    "inputSchema": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        about = {"name": "scales", "version": "1.0.0"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        if listed := os.environ.get("LISTED"):
            Path(listed).touch()
        return {"tools": [TOOL]}
    if method == "tools/call":
        weight = f"{params['arguments']['thing']} weighs 42 {os.environ['UNIT']} {' '.join(sys.argv[1:])}"
        return {"content": [{"type": "text", "text": weight}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue  # a notification, or an answer
    result = answer(message["method"], message.get("params") or {})
    problem = {"error": {"code": -32601, "message": "no such method"}}
    reply = problem if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
