"""What each part of the system has used of the processor: whole process trees, the programs that came and went included."""

from __future__ import annotations

import resource
from collections import defaultdict

import psutil

PARTS = {
    "vLLM": ("vllm.entrypoints", "VLLM::"),
    "Kafka": ("kafka.Kafka",),
    "proxy": ("polar.cli proxy",),
    "fanout, coordinator, builder": ("worker fanout",),
    "stages and agents": ("worker init",),
    "analytics, webhooks": ("worker analytics",),
}
"""What to find in a program's command line. A stage worker's time holds that of the agents that have ended."""
OTHER = "other"
ENDED = "trainer"
"""Programs of this process that it has waited for: where there is something to compare, only trainers."""


def seconds_by_part() -> dict[str, float]:
    """CPU seconds so far of this process's programs; what has ended counts where its parent has waited for it."""
    found: defaultdict[str, float] = defaultdict(float)
    for process in psutil.Process().children(recursive=True):
        try:
            found[_part(process)] += _seconds(process)
        except psutil.NoSuchProcess:
            continue
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {**found, ENDED: ended.ru_utime + ended.ru_stime}


def since(before: dict[str, float]) -> dict[str, float]:
    """CPU seconds by part since then, the largest first."""
    used = {part: seconds - before.get(part, 0) for part, seconds in seconds_by_part().items()}
    return dict(sorted(used.items(), key=lambda item: -item[1]))


def _part(process: psutil.Process) -> str:
    """By its own command line, else its ancestors'."""
    for each in (process, *process.parents()):
        line = " ".join(each.cmdline())
        for part, words in PARTS.items():
            if any(word in line for word in words):
                return part
    return OTHER


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
