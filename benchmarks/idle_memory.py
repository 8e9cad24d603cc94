"""Memory and CPU of an idle `polar up`, part by part.

    python -m benchmarks.idle_memory [--format table|json]

Memory is PSS (Linux): what a part's processes have for themselves, and of each page that is shared with others its share, so that the sum
is what the system takes and nothing is counted twice. Measured after 20 s without a task, scripted engine included.
"""

from __future__ import annotations

import asyncio

from benchmarks import report
from benchmarks.report import Figure
from benchmarks.system import up

IDLE_S = 20.0


async def measure() -> list[Figure]:
    """Starts a system, leaves it alone, and looks."""
    async with up() as system:
        before = system.cpu()
        await asyncio.sleep(IDLE_S)
        busy = {name: (after - before[name]) / IDLE_S * 100 for name, after in system.cpu().items()}
        memory = {
            name: sum(process.memory_full_info().pss for process in processes) / 1e6
            for name, processes in system.parts().items()
        }
    return [
        *(Figure(f"memory: {name}", megabytes, "MB") for name, megabytes in memory.items()),
        Figure("memory: all", sum(memory.values()), "MB", "≤ 500 MB"),
        *(Figure(f"CPU: {name}", percent, "% of a core") for name, percent in busy.items()),
        Figure("CPU: all", sum(busy.values()), "% of a core", "≤ 3 %"),
    ]


def run() -> list[Figure]:
    """All figures."""
    return asyncio.run(measure())


if __name__ == "__main__":
    report.main(__doc__, run)
