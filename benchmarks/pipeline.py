"""Sessions through all stages: how many a second one `polar up` carries, and the CPU that each costs.

    python -m benchmarks.pipeline [--format table|json]

One task of 100 samples; a `shell` harness in plain bash makes one call to the proxy and ends. So what is measured is the pipeline itself:
tickets, claims, grants, sandboxes, facts, a call, a build, with the default slots (init 4, run 8, evaluate 4). An indication: everything
shares this machine, and a coding agent's own work, minutes of it, comes on top.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks import report
from benchmarks.report import Figure
from benchmarks.system import up

SAMPLES = 100
WARM_UP = 16
HARNESS = """
address=${OPENAI_BASE_URL#http://}; address=${address%%/*}
body='{"model": "polar-scripted", "messages": [{"role": "user", "content": "hello"}]}'
exec 3<>"/dev/tcp/${address%:*}/${address#*:}"
printf '%s\\r\\n' 'POST /v1/chat/completions HTTP/1.1' "Host: $address" 'Connection: close' 'Content-Type: application/json' \\
  "Authorization: Bearer $OPENAI_API_KEY" "Content-Length: ${#body}" '' >&3
printf '%s' "$body" >&3
read -r _ status _ <&3 && [ "$status" = 200 ]
"""


def task(name: str, samples: int) -> dict[str, Any]:
    """A TaskRequest of the trivial harness."""
    agent = {"harness": "shell", "custom_shell": {"command": HARNESS}}
    return {"task_id": name, "instruction": "say hello", "num_samples": samples, "agent": agent}


async def measure() -> list[Figure]:
    """Warms up, then runs the task."""
    async with up() as system:
        await system.run(task("warm-up", WARM_UP))
        before = system.cpu()
        took = await system.run(task("many", SAMPLES))
        spent = {name: (after - before[name]) / SAMPLES * 1e3 for name, after in system.cpu().items()}
        alone = await system.run(task("one", 1))
    return [
        Figure("sessions a second", SAMPLES / took, "/s"),
        Figure("one session alone", alone * 1e3, "ms"),
        *(Figure(f"CPU: {name}", milliseconds, "ms a session") for name, milliseconds in spent.items()),
        Figure("CPU: all", sum(spent.values()), "ms a session"),
    ]


def run() -> list[Figure]:
    """All figures."""
    return asyncio.run(measure())


if __name__ == "__main__":
    report.main(__doc__, run)
