"""A harness of few lines, run by `shell`: a conversation that grows by a turn with each call. Standard library alone.

`TURNS` calls, with `PAUSE_S` between two. Each answer is a JSON line on stdout before the next call: a test knows from the log what a
harness saw. Errors that a provider's client would retry are retried, for `TRY_S` at most.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TRY_S = float(os.environ.get("TRY_S", "150"))
"""For one call, all its tries included: by default longer than the proxy's own wait for an acknowledgement."""


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "m", "messages": messages}).encode(),
        headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    deadline = time.monotonic() + TRY_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=TRY_S) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            if error.code not in (429, 500, 502, 503, 504) or time.monotonic() > deadline:
                raise
        except (urllib.error.URLError, ConnectionError, json.JSONDecodeError, TimeoutError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def main() -> None:
    instruction = Path(os.environ["POLAR_INSTRUCTION_FILE"]).read_text()
    assert sys.stdin.read() == instruction, "the instruction is on stdin, too"
    session = os.environ["POLAR_SESSION_ID"]
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{session}: {instruction}"}]
    for turn in range(int(os.environ["TURNS"])):
        answer = complete(messages)
        content = answer["choices"][0]["message"]["content"]
        print(json.dumps({"session_id": session, "call_id": answer["id"], "content": content}), flush=True)
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": f"go on, {turn}"}]
        time.sleep(float(os.environ.get("PAUSE_S", "0")))


if __name__ == "__main__":
    main()
