"""A harness that says more than it should: prints its whole environment, and shows its key and the signing secrets wherever a client might.

`KEYS_FILE` names the file of these secrets, which a program in the runtime `process` can read.
`CODE` is what it exits with, `HELD_UNTIL` a file that it waits for before. Standard library alone.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HELD_S = 120.0
KEY = os.environ["OPENAI_API_KEY"]
BASE = os.environ["ANTHROPIC_BASE_URL"]
FORGED = KEY[:-6] + "AAAAAA"
GOOD = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SECRETS = Path(os.environ["KEYS_FILE"]).read_text()
SAID = [{"role": "user", "content": f"the environment is: OPENAI_API_KEY={KEY}, and the secrets are {SECRETS}"}]


def ask(path: str, body: object, **headers: str) -> str:
    """Status and body of an answer, whatever it is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(BASE + path, data, {"Content-Type": "application/json"} | named)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return f"{response.status} {response.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"


def main() -> None:
    print(dict(os.environ))
    print(SECRETS, base64.b64encode(SECRETS.encode()).decode())
    print(KEY, file=sys.stderr)
    Path("found.txt").write_text(KEY + SECRETS)
    bearer = {"Authorization": f"Bearer {KEY}"}
    gemini = {"contents": [{"parts": [{"text": "hello"}]}]}
    answers = [
        ask("/v1/chat/completions", GOOD, **bearer),
        ask("/v1/messages", GOOD | {"max_tokens": 8}, x_api_key=KEY),
        ask(f"/v1beta/models/m:generateContent?key={KEY}", gemini),
        ask(f"/v1beta/models/m:generateContent?key={FORGED}", gemini),
        ask(f"/v1beta/models/{KEY}:generateContent", b"{no json", x_goog_api_key=KEY),
        ask("/v1/chat/completions", GOOD, Authorization=f"Bearer {FORGED}"),
        ask("/v1/chat/completions", GOOD, Authorization=KEY),
        ask("/v1/chat/completions", b"[" + KEY.encode(), **bearer),
        ask("/v1/chat/completions", GOOD | {"n": KEY}, **bearer),
        ask("/v1/chat/completions", GOOD | {"temperature": KEY}, **bearer),
        ask("/v1/messages", GOOD, x_api_key=KEY, anthropic_version=KEY),
        ask(f"/v1/nowhere/{KEY}?key={KEY}", GOOD, **bearer),
        ask("/v1/responses", {"model": "m", "input": "hello", "previous_response_id": KEY}, **bearer),
        ask("/v1/chat/completions", GOOD, Authorization=f"Bearer {KEY}", session_id=KEY, x_session_id=KEY),
        ask("/v1/chat/completions", {"model": KEY, "user": KEY, "messages": SAID}, **bearer),
        ask(
            "/v1/messages",
            {"model": KEY, "max_tokens": 8, "system": f"secrets: {KEY} {SECRETS}", "messages": SAID},
            **bearer,
        ),
    ]
    assert answers[0].startswith("200"), answers[0]
    for number, answer in enumerate(answers):
        if KEY[:16] in answer:
            print(f"LEAK: answer {number} holds a key: {answer.replace(KEY[:16], '')[:300]}")
    deadline = time.monotonic() + HELD_S
    while "HELD_UNTIL" in os.environ and not Path(os.environ["HELD_UNTIL"]).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    sys.exit(int(os.environ.get("CODE", "0")))


if __name__ == "__main__":
    main()
