"""The agent: asks the model with three tools, does in its folder what the model calls for, until it says something without a call.

Runs alone (`python3 -S -E agent.py`, the standard library's quickest parts), its request on stdin, the model at $OPENAI_BASE_URL.
When the test has passed, and nothing was edited since, `VERIFIED` exists. Exit code 3: the model wrote what is no call and no
end, and the session stops there.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would be a third of this program's start
    from typing import Any

TURNS = 6
MAX_TOKENS = 96
ANSWER_S = 300
MALFORMED = 3
VERIFIED = ".verified"
RESULT_CHARACTERS = 200


def schema(name: str, *parameters: str) -> dict[str, Any]:
    """A tool that takes texts, as OpenAI's chat describes one."""
    properties = {parameter: {"type": "string"} for parameter in parameters}
    described = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": described}}


def grep(key: str) -> str:
    done = subprocess.run(["grep", "-nF", "--", key, *sources()], stdout=subprocess.PIPE, check=False)
    return done.stdout.decode().strip() or "no match"


def edit(path: str, old: str, new: str) -> str:
    if path not in sources():
        return "no such file"
    text = Path(path).read_text()
    if not old or old not in text:
        return "no such text"
    Path(path).write_text(text.replace(old, new, 1))
    mark(is_verified=False)
    return "edited"


def run(command: str) -> str:
    if command != "make test":
        return "not allowed"
    passes = subprocess.run(["make", "-s", "test"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    mark(is_verified=passes)
    return "passed" if passes else "failed"


def sources() -> list[str]:
    return sorted(path.name for path in Path().glob("*.py") if path.name != Path(__file__).name)


def mark(*, is_verified: bool) -> None:
    if is_verified:
        Path(VERIFIED).touch()
    else:
        Path(VERIFIED).unlink(missing_ok=True)


TOOLS: dict[str, Any] = {"grep": grep, "edit": edit, "run": run}
SCHEMAS = [schema("grep", "key"), schema("edit", "path", "old", "new"), schema("run", "command")]


def main() -> int:
    """0: it said something without a call, or its turns are spent; else `MALFORMED`."""
    base = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(base.netloc, timeout=ANSWER_S)
    messages = [{"role": "user", "content": sys.stdin.read()}]
    for _ in range(TURNS):
        message, finish_reason = ask(connection, base.path, messages)
        messages.append(message)
        calls = message.get("tool_calls")
        if not calls:
            is_end = finish_reason == "stop" and "<" not in message["content"]
            return 0 if is_end else MALFORMED
        for call in calls:
            result = do(call["function"])
            if result is None:
                return MALFORMED
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result[:RESULT_CHARACTERS]})
    return 0


def ask(
    connection: http.client.HTTPConnection, path: str, messages: list[dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    """The model's message, as the next request repeats it, and its finish reason."""
    body = {"model": "tiny", "messages": messages, "tools": SCHEMAS, "temperature": 1, "max_tokens": MAX_TOKENS}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", path + "/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise SystemExit(f"the model's answer is {response.status}: {answer.decode(errors='replace')}")
    choice = json.loads(answer)["choices"][0]
    message = {"role": "assistant", "content": choice["message"].get("content") or ""}
    if choice["message"].get("tool_calls"):
        message["tool_calls"] = choice["message"]["tool_calls"]
    return message, choice["finish_reason"]


def do(function: dict[str, str]) -> str | None:
    """The tool's answer; None where there is no such tool, or its arguments are others."""
    try:
        result: str = TOOLS[function["name"]](**json.loads(function["arguments"]))
        return result
    except (KeyError, TypeError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main())
