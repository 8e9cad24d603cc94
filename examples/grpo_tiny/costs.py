"""What each part of the system has used of the processor: whole process trees, the programs that came and went included."""

from __future__ import annotations

from collections import Counter

import psutil

PARTS = {
    "vLLM": ("vllm",),
    "trainer": ("examples.grpo_tiny.trainer",),
    "Kafka": ("kafka.Kafka",),
    "proxy": ("polar.cli proxy",),
    "fanout, coordinator, builder": ("worker fanout",),
    "stages and agents": ("worker init",),
    "analytics, webhooks": ("worker analytics",),
}
"""What to find in a program's command line, first found first. A stage worker's time holds that of its supervisors and agents."""


def seconds_by_part(root: int) -> Counter[str]:
    """CPU seconds so far of all that descends from process `root`; what has ended counts where its parent has waited for it."""
    found: Counter[str] = Counter()
    for process in psutil.Process(root).children(recursive=True):
        try:
            found[_part(process)] += _seconds(process)
        except psutil.NoSuchProcess:
            continue
    return found


def _part(process: psutil.Process) -> str:
    """By its own command line, else its ancestors'."""
    for each in (process, *process.parents()):
        line = " ".join(each.cmdline())
        for part, words in PARTS.items():
            if any(word in line for word in words):
                return part
    return "other"


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
