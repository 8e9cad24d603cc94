"""A harness in few lines: one conversation of two calls, whose last answer it keeps."""

import json
import os
import sys
import urllib.request
from pathlib import Path

messages = []
for said in (sys.stdin.read(), "Say it shorter."):
    messages.append({"role": "user", "content": said})
    request = urllib.request.Request(  # noqa: S310 - the URL is the worker's
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        answer = json.load(response)["choices"][0]["message"]["content"]
    messages.append({"role": "assistant", "content": answer})
Path("answer.txt").write_text(answer)
