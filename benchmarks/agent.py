"""The harness of `log_bytes`: a conversation that grows by what FILE holds, as a coding agent's does by what its tools say.

    python agent.py FILE

FILE is a JSON array of texts, one for each call; what was answered goes back as it came. Standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path


def main(file: Path) -> None:
    """One call for each text."""
    messages: list[dict[str, str]] = []
    for text in json.loads(file.read_text()):
        messages.append({"role": "user", "content": text})
        request = urllib.request.Request(  # noqa: S310 - the proxy's
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            data=json.dumps({"model": "polar-scripted", "messages": messages}).encode(),
            headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            answer = json.load(response)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
